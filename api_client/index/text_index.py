"""An index of what finished turns were asked, so that a search for text reads few messages.

A segment of the index covers a period in which 1,000 turns finished, with a table of bits (``text_table.py``). It
expires with its oldest turn, and is used only while the store lists as many turns of its period as it has: the turns
of all other periods, such as the newest ones, are read one by one.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from api_client.contract.keys import KeyNames, named_key, named_keys
from api_client.index.text_table import find_rows, intersect_rows
from api_client.store import Store


class TextIndexKeys(KeyNames):
    """Names the Redis keys of the text index."""

    #: Sorted set: the segments by their last millisecond.
    segments = named_key("text_index")
    #: String: the table of a segment; expires with the segment's oldest turn.
    table = named_keys("text_index:")
    #: String: a process extends the index at the moment; expires.
    indexer = named_key("text_indexer")


class Segment(NamedTuple):
    """A part of the text index: one table for all turns that finished in a period (milliseconds, inclusive)."""

    low: int
    high: int
    turns: int

    def __str__(self) -> str:
        return f"{self.low}-{self.high}-{self.turns}"


class SearchPeriod(NamedTuple):
    """A period to search, from its first to its last millisecond since the epoch (inclusive).

    ``segments`` has a bit for each indexed turn, which is set if the turn may match. Without segments, any turn may.
    """

    low: int
    high: int
    segments: tuple[tuple[Segment, int], ...] = ()

    def list_places(self, *, descending: bool) -> Iterator[tuple[Segment, int]]:
        """Yield each turn that may match, in order of time, as its segment and its rank in the segment."""
        for segment, bits in reversed(self.segments) if descending else self.segments:
            columns = [column for column in range(segment.turns) if bits >> column & 1]
            for column in reversed(columns) if descending else columns:
                yield segment, column


class TextIndex:
    """Finds in the text index which turns a search has to read. Methods raise ``StoreUnavailable``."""

    def __init__(self, store: Store) -> None:
        self._redis, self._ask = store.redis, store.await_reply
        self._finished, self._keys = store.keys.finished, TextIndexKeys(store.namespace)

    async def plan_search(self, text: str) -> list[SearchPeriod]:
        """Return the periods to search for ``text``, oldest first. Together, the periods cover all time."""
        rows = find_rows(text)
        segments = await self.read_segments() if rows else []
        pipe = self._redis.pipeline(transaction=False)
        for segment in segments:
            width = -(-segment.turns // 8)
            pipe.zcount(self._finished, segment.low, segment.high)
            for row in rows:
                pipe.getrange(self._keys.table(str(segment)), row * width, row * width + width - 1)
        found = await self._ask(pipe.execute())
        plan, begin = list[SearchPeriod](), 0
        for number, segment in enumerate(segments):
            turns, *bits = found[number * (len(rows) + 1) : (number + 1) * (len(rows) + 1)]
            if segment.low < begin or turns != segment.turns or not all(bits):
                continue  # two processes indexed the same turns, or the segment has expired
            if segment.low > begin:
                plan.append(SearchPeriod(begin, segment.low - 1))
            joined = plan.pop() if plan and plan[-1].segments else SearchPeriod(segment.low, segment.high)
            described = (*joined.segments, (segment, intersect_rows(bits)))
            plan.append(SearchPeriod(joined.low, segment.high, described))
            begin = segment.high + 1
        return [*plan, SearchPeriod(begin, sys.maxsize)]

    async def locate_turns(self, places: Sequence[tuple[Segment, int]]) -> list[tuple[str, int]] | None:
        """Return ids and times of the turns at these places, or None if a segment is outdated by now."""
        pipe = self._redis.pipeline(transaction=False)
        for segment, column in places:
            pipe.zrangebyscore(self._finished, segment.low, segment.high, column, 1, withscores=True)
        segments = list(dict.fromkeys(segment for segment, _ in places))
        for segment in segments:  # last: turns only leave a period
            pipe.zcount(self._finished, segment.low, segment.high)
        found = await self._ask(pipe.execute())
        if found[len(places) :] != [segment.turns for segment in segments]:
            return None
        return [(raw.decode(), int(at)) for [(raw, at)] in found[: len(places)]]

    async def count_unindexed(self) -> int:
        """Return the number of finished turns that are not in the index yet."""
        indexed = sum(segment.turns for segment in await self.read_segments())
        return max(0, int(await self._ask(self._redis.zcard(self._finished))) - indexed)

    async def read_segments(self) -> list[Segment]:
        """Return all segments, oldest first, including outdated segments."""
        names = await self._ask(self._redis.zrange(self._keys.segments, 0, -1))
        return [Segment(*map(int, raw.decode().split("-"))) for raw in names]
