"""Extends the index of texts by the turns that have finished, and removes what has expired from it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

from api_client.index.lists import TurnLists
from api_client.index.text_index import Segment, TextIndex, TextIndexKeys
from api_client.index.text_table import build_table
from api_client.store import Store

#: Turns of a segment. Fewer turns outside of all segments are read one by one faster than they are indexed.
SEGMENT_TURNS = 1000
#: A segment's oldest turn is kept for at least this share of the retention.
_LASTING = 0.02
#: Age of a segment's youngest turn, in milliseconds.
_SETTLED_MS = 1000
_LOOK_SECONDS = 10.0


class TextIndexer:
    """A background job of worker processes that keeps the text index up to date. Methods raise ``StoreUnavailable``."""

    def __init__(self, store: Store) -> None:
        self.name, self.seconds = "text-index", _LOOK_SECONDS
        self._redis, self._ask, self._clock_ms = store.redis, store.await_reply, store.read_clock_ms
        self._lists, self._index = TurnLists(store), TextIndex(store)
        self._finished, self._keys = store.keys.finished, TextIndexKeys(store.namespace)
        self._retention_ms = int(store.settings.retention_seconds * 1000)

    async def poll(self) -> None:
        """Extend the index, unless another process has done so in the last few seconds."""
        if await self._ask(self._redis.set(self._keys.indexer, 1, nx=True, ex=int(_LOOK_SECONDS) - 1)):
            await self.extend()

    async def leave(self) -> None:
        """Do nothing when this process stops, because the other workers keep the index up to date."""

    async def extend(self) -> None:
        """Add finished turns to the index, as segments of at least ``SEGMENT_TURNS`` turns. Idempotent."""
        now = await self._clock_ms()
        begin = now - int(self._retention_ms * (1 - _LASTING))
        for low, high in _list_gaps(await self.prune(), begin, now - _SETTLED_MS):
            while await self._ask(self._redis.zcount(self._finished, low, high)) >= SEGMENT_TURNS:
                low = await self._add_segment(low, high)
                await self._ask(self._redis.expire(self._keys.indexer, int(_LOOK_SECONDS) - 1))

    async def prune(self) -> list[Segment]:
        """Delete outdated segments of the index, and return the other segments, oldest first.

        A segment is outdated once some of its turns have been deleted or have expired.
        """
        segments, over = await self._index.read_segments(), await self._clock_ms() - self._retention_ms
        pipe = self._redis.pipeline(transaction=False)
        for segment in segments:
            pipe.zcount(self._finished, max(over, segment.low), segment.high)
        counts = await self._ask(pipe.execute())
        kept = [each for each, turns in zip(segments, counts, strict=True) if turns == each.turns]
        if gone := [str(each) for each in segments if each not in {*kept}]:
            await self._ask(self._redis.unlink(*map(self._keys.table, gone)))
            await self._ask(self._redis.zrem(self._keys.segments, *gone))
        return kept

    async def _add_segment(self, low: int, high: int) -> int:
        finished = self._redis.zrangebyscore
        found = await self._ask(finished(self._finished, low, high, 0, SEGMENT_TURNS, withscores=True))
        last = int(found[-1][1]) if found else high
        found += await self._ask(finished(self._finished, last, last, withscores=True))  # the whole millisecond
        times = {raw.decode(): int(at) for raw, at in found}
        messages = {turn.turn_id: turn.request.prompt for turn in await self._lists.read_turns(times)}
        if times:
            table = await asyncio.to_thread(build_table, [messages.get(turn_id, "") for turn_id in times])
            segment = Segment(low, last, len(times))
            pipe = self._redis.pipeline(transaction=True)
            pipe.set(self._keys.table(str(segment)), table, pxat=min(times.values()) + self._retention_ms)
            pipe.zadd(self._keys.segments, {str(segment): segment.high})
            pipe.pexpire(self._keys.segments, self._retention_ms)
            await self._ask(pipe.execute())
        return last + 1


def _list_gaps(segments: Sequence[Segment], begin: int, end: int) -> Iterator[tuple[int, int]]:
    for low, high in (*((each.low, each.high) for each in segments), (end, end)):
        if begin < low:
            yield begin, low - 1
        begin = max(begin, high + 1)
