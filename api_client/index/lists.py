"""Reads many turns at once: unfinished turns, pages of finished turns, and dead letters."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from itertools import islice

from api_client.contract.attempt_record import AttemptRecord
from api_client.contract.keys import keys_for_turn
from api_client.contract.record import decode_attempts, decode_turn
from api_client.contract.turn import Turn
from api_client.index.search import (
    _BATCH,
    _FIELDS,
    _FIRST,
    _LUA,
    _SCANNED,
    _TEXTS,
    LOOK_AT_MOST,
    LOOK_SECONDS,
    STATUSES,
    Cursor,
    FoundTurn,
    Page,
    Search,
    find_folding_letters,
    hide_turn,
)
from api_client.index.text_index import SearchPeriod, TextIndex
from api_client.store import Store
from api_client.store.read_script import ReadScript

_Batches = AsyncGenerator[tuple[list[Cursor], Cursor]]


class TurnLists:
    """Reads lists of turns from the store, without their answers, which may be long.

    Methods raise ``StoreUnavailable``.
    """

    def __init__(self, store: Store) -> None:
        self._redis, self._ask = store.redis, store.await_reply
        self._keys = store.keys
        self._namespace = store.namespace
        self._texts = TextIndex(store)
        self._select = ReadScript(store.redis, _LUA / "select.lua")

    async def list_unfinished(self, search: Search) -> list[FoundTurn]:
        """Return the matching unfinished turns, oldest first, among the first ``LOOK_AT_MOST`` turns."""
        ids = [raw.decode() for raw in await self._ask(self._redis.zrange(self._keys.due, 0, LOOK_AT_MOST - 1))]
        found = await self._match_turns(ids, search)
        known = {*STATUSES["unfinished"]}  # due may still name a turn that has just finished
        return sorted((each for each in found if each.status in known), key=lambda each: each.created_at)

    async def read_page(
        self, search: Search, *, after: Cursor | None = None, count: int = 50, seconds: float = LOOK_SECONDS
    ) -> Page:
        """Return the page of matching turns that follows the position ``after``.

        The search stops after about ``seconds``, with a page that may have less than ``count`` turns.
        """
        until, found = time.monotonic() + seconds, list[Turn]()
        parts = search.parts if not after or after.part in search.parts else ()
        for part in parts[parts.index(after.part) :] if after and parts else parts:
            begin = after if after and after.part == part else None
            batches = (
                self._read_unfinished_batches(search, begin)
                if part == "u"
                else self._read_finished_batches(search, begin)
            )
            async with aclosing(batches):
                async for batch, last in batches:
                    rest = batch
                    while rest:
                        room = count - len(found)
                        looked_at, rest = (rest, []) if search.text else (rest[:room], rest[room:])
                        places = {place.turn_id: place for place in looked_at}
                        turns = [
                            turn
                            for turn in await self.read_turns(places)
                            if not search.text or search.matches_text(turn)
                        ]
                        found += turns[:room]
                        if len(found) == count:
                            return Page(turns=tuple(found), next=places[found[-1].turn_id])
                    place = hide_turn(last, found, after, oldest_first=search.sort == "oldest")
                    if time.monotonic() > until and place != after:
                        return Page(turns=tuple(found), next=place)
        return Page(turns=tuple(found), next=None)

    async def _read_unfinished_batches(self, search: Search, after: Cursor | None) -> _Batches:
        found = [
            Cursor("u", each.created_at, each.turn_id)
            for each in await self.list_unfinished(search)
            if search.contains_time(each.created_at / 1000)
        ]
        found.sort(key=_sort_key, reverse=search.sort != "oldest")
        rest = [place for place in found if after is None or _is_behind(place, after, search)]
        for start in range(0, len(rest), _TEXTS):
            batch = rest[start : start + _TEXTS]
            yield batch, batch[-1]

    async def _read_finished_batches(self, search: Search, after: Cursor | None) -> _Batches:
        async with aclosing(self._read_batches(search, after)) as batches:
            async for batch in batches:
                matching = {
                    each.turn_id for each in await self._match_turns([place.turn_id for place in batch], search)
                }
                places = [place for place in batch if place.turn_id in matching]
                for start in range(0, len(places), _TEXTS):
                    part = places[start : start + _TEXTS]
                    yield part, part[-1]
                yield [], batch[-1]

    async def find_ids(self, text: str, *, owner: str = "") -> list[str]:
        """Return up to two ids of turns that begin with ``text``, for one owner or for all owners."""
        found: list[str] = []
        for name in (self._keys.due, self._keys.finished, self._keys.dead):
            cursor = 0
            while True:
                cursor, ids = await self._ask(self._redis.zscan(name, cursor, match=f"{text}*", count=_SCANNED))
                matching = await self._match_turns([raw.decode() for raw, _ in ids], Search(owner=owner))
                found = [*dict.fromkeys([*found, *(each.turn_id for each in matching)])]
                if len(found) > 1:
                    return found[:2]
                if not cursor:
                    break
        return found

    async def list_newest_finished(self, search: Search, *, since: float, at_most: int) -> list[FoundTurn]:
        """Return up to ``at_most`` matching turns that finished after ``since`` (epoch seconds), newest first."""
        found: list[FoundTurn] = []
        async with aclosing(self._read_batches(replace(search, since=since), None)) as batches:
            async for batch in batches:
                found += await self._match_turns([place.turn_id for place in batch], search)
                if len(found) >= at_most:
                    break
        return found[:at_most]

    async def read_dead(self, count: int) -> tuple[int, list[Turn]]:
        """Return the number of dead letters, and the newest ``count`` of them."""
        return await self._read_first(self._keys.dead, count, newest=True)

    async def list_dead_letters(self, search: Search) -> list[FoundTurn]:
        """Return the dead letters that match a search, without those that an operator has dropped."""
        ids = [raw.decode() for raw in await self._ask(self._redis.zrange(self._keys.dead, 0, -1))]
        return await self._match_turns(ids, search)

    async def is_dead_letter(self, turn_id: str) -> bool:
        """Return True if a turn is on the list of dead letters and has not been dropped."""
        return await self._ask(self._redis.zscore(self._keys.dead, turn_id)) is not None

    async def read_suspended(self, count: int) -> tuple[int, list[Turn]]:
        """Return the number of suspended turns, and the ``count`` turns that have waited longest."""
        return await self._read_first(self._keys.suspended, count, newest=False)

    async def _read_first(self, name: str, count: int, *, newest: bool) -> tuple[int, list[Turn]]:
        first = await self._ask(self._redis.zrange(name, 0, count - 1, desc=newest))
        return await self._ask(self._redis.zcard(name)), await self.read_turns(raw.decode() for raw in first)

    async def read_turns(self, turn_ids: Iterable[str]) -> list[Turn]:
        """Return the turns with these ids in the given order, without turns that no longer exist.

        Of a long conversation, only the user's message is read.
        """
        pipe = self._redis.pipeline(transaction=False)
        for turn_id in turn_ids:
            keys = keys_for_turn(self._namespace, turn_id)
            pipe.hmget(keys.turn(turn_id), _FIELDS)
            pipe.hget(keys.texts(turn_id), "request")
        turns = []
        found = await self._ask(pipe.execute())
        for values, request in zip(found[::2], found[1::2], strict=True):
            stored = {name.encode(): value for name, value in zip(_FIELDS, values, strict=True) if value is not None}
            if request is not None:  # a long one, stored apart from the record
                stored[b"request"] = request
            with suppress(ValueError):  # gone, or damaged: `turns turn show` says which
                turns.append(decode_turn(stored))
        return turns

    async def read_attempts(self, turns: Sequence[Turn]) -> list[list[AttemptRecord]]:
        """Return the attempts of each turn, oldest first. Expired attempts give an empty list."""
        pipe = self._redis.pipeline(transaction=False)
        for turn in turns:
            pipe.hgetall(keys_for_turn(self._namespace, turn.turn_id).attempts(turn.turn_id))
        found = await self._ask(pipe.execute())
        return [decode_attempts(each, turn.request.prompt) for turn, each in zip(turns, found, strict=True)]

    async def read_attempt_starts(self, turns: Iterable[Turn]) -> dict[str, float]:
        """Return the start time of each turn's current attempt by turn id, in epoch seconds (0 if not started)."""
        turns = list(turns)
        pipe = self._redis.pipeline(transaction=False)
        for turn in turns:
            pipe.hget(keys_for_turn(self._namespace, turn.turn_id).attempts(turn.turn_id), f"{turn.attempt}:started_at")
        found = await self._ask(pipe.execute())
        return {turn.turn_id: int(at or 0) / 1000 for turn, at in zip(turns, found, strict=True)}

    async def _read_batches(self, search: Search, after: Cursor | None) -> AsyncGenerator[list[Cursor]]:
        oldest, low = search.sort == "oldest", int(search.since * 1000)
        high = int(search.until * 1000) - 1 if search.until else sys.maxsize
        if after:
            low, high = (max(low, after.at), high) if oldest else (low, min(high, after.at))
        plan = [
            each._replace(low=max(low, each.low), high=min(high, each.high))
            for each in await self._texts.plan_search(search.text)
            if each.low <= high and each.high >= low
        ]
        for period in plan if oldest else reversed(plan):
            read = self._read_places if period.segments else self._read_period
            async with aclosing(read(search, period, after)) as batches:
                async for batch in batches:
                    yield batch

    async def _read_places(
        self, search: Search, period: SearchPeriod, after: Cursor | None
    ) -> AsyncGenerator[list[Cursor]]:
        places, last = period.list_places(descending=search.sort != "oldest"), after
        while some := list(islice(places, _FIRST)):
            found = await self._texts.locate_turns(some)
            if found is None:  # the index has changed
                async with aclosing(self._read_period(search, period, last)) as batches:
                    async for batch in batches:
                        yield batch
                return
            cursors = [Cursor("f", at, turn_id) for turn_id, at in found if period.low <= at <= period.high]
            if batch := [each for each in cursors if last is None or _is_behind(each, last, search)]:
                last = batch[-1]
                yield batch

    async def _read_period(
        self, search: Search, period: SearchPeriod, after: Cursor | None
    ) -> AsyncGenerator[list[Cursor]]:
        oldest, low, high = search.sort == "oldest", period.low, period.high
        if after:
            low, high = (max(low, after.at), high) if oldest else (low, min(high, after.at))
        # Number of turns already yielded whose time is the same millisecond as that of ``last``.
        last, same, size = after, 0, _FIRST
        while True:
            (begin, end), most = ((low, high) if oldest else (high, low)), size + same
            read = self._redis.zrange(
                self._keys.finished, begin, end, desc=not oldest, byscore=True, withscores=True, offset=0, num=most
            )
            members = [Cursor("f", int(score), raw.decode()) for raw, score in await self._ask(read)]
            found = [each for each in members if last is None or _is_behind(each, last, search)]
            batch = found[:size]
            if batch:
                yield batch
            if len(members) < most and len(found) <= size:
                return
            if not batch:  # all in one millisecond, and yielded before
                same += size
                continue
            at = batch[-1].at
            same = sum(place.at == at for place in batch) + (same if last and last.at == at else 0)
            last = batch[-1]
            low, high = (at, high) if oldest else (low, at)
            size = min(2 * size, _BATCH)

    async def _match_turns(self, ids: list[str], search: Search) -> list[FoundTurn]:
        found: list[FoundTurn] = []
        for start in range(0, len(ids), _BATCH):
            found += await self._match_batch(ids[start : start + _BATCH], search)
        return found

    async def _match_batch(self, ids: list[str], search: Search) -> list[FoundTurn]:
        read = [self._keys.turn(turn_id) for turn_id in ids]
        if search.rule:
            read += [self._keys.attempts(turn_id) for turn_id in ids]
        if text := search.stored_text:
            read += [self._keys.texts(turn_id) for turn_id in ids]
        lost = "1" if search.lost else ""
        labels = json.dumps(dict(search.labels))
        wanted = [search.owner, search.session_id, search.model, lost, search.rule, labels, text]
        wanted += ["\n".join(find_folding_letters(text)), *search.words]
        answer = await self._ask(self._select(keys=read, args=wanted))
        return [
            FoundTurn(
                ids[place - 1],
                status.decode(),
                int(created),
                int(finished),
                int(strikes),
                model.decode("utf-8", "replace"),
            )
            for place, status, created, finished, strikes, model in answer
        ]


def _sort_key(place: Cursor) -> tuple[int, str]:
    return place.at, place.turn_id


def _is_behind(place: Cursor, other: Cursor, search: Search) -> bool:
    return _sort_key(place) > _sort_key(other) if (search.sort == "oldest") else _sort_key(place) < _sort_key(other)
