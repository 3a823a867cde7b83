"""Reading many turns at once: unfinished ones, finished ones page by page, what matches a search.

Nothing here looks through the store's keys: unfinished turns are in ``due``, finished ones in ``finished``. What
matches is decided where the records are, a few hundred records a command, so that no command holds the store up.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import AsyncGenerator, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from api_client.contract.keys import Keys, keys_of
from api_client.contract.record import decode_turn
from api_client.contract.turn import Outcome, Turn, TurnState, shard_of
from api_client.store import Store

_LUA = Path(__file__).with_name("lua")
#: Records one command looks at.
_BATCH = 500
#: Records one question looks at, at most; a page that found less says where it stopped.
LOOK_AT_MOST = 20_000
#: What a list needs of a record.
_FIELDS = (
    "id", "epoch", "state", "outcome", "request", "attempt", "delivery", "created_at", "finished_at", "deadline_at",
    "lease_until", "seq", "retries", "transients", "strikes", "stop", "step", "step_source", "worker", "next",
    "tokens_used", "cost_used", "replay_of", "error", "allowed", "parked_at", "decide_by", "decide_default",
)  # fmt: skip

#: The states of unfinished turns, in the order a turn goes through them.
UNFINISHED = (TurnState.QUEUED, TurnState.RUNNING, TurnState.RAN, TurnState.VALIDATING, TurnState.PARKED)
#: What a search may ask for by one word: states of unfinished turns, outcomes, and groups of these.
STATUSES: dict[str, tuple[str, ...]] = {
    "unfinished": tuple(state.value for state in UNFINISHED),
    "success": tuple(outcome.value for outcome in Outcome if outcome.success),
    "unsuccessful": tuple(outcome.value for outcome in Outcome if not outcome.success),
    **{state.value: (state.value,) for state in UNFINISHED},
    **{outcome.value: (outcome.value,) for outcome in Outcome},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """Which turns are asked for; an empty field asks for all.

    Attributes:
        owner: only this owner's. session_id: only of this session.
        status: a key of ``STATUSES``.
        lost: only turns a worker died or froze with.
    """

    owner: str = ""
    session_id: str = ""
    status: str = ""
    lost: bool = False

    @property
    def words(self) -> tuple[str, ...]:
        """The states and outcomes asked for; empty for all."""
        return STATUSES[self.status] if self.status else ()

    @property
    def unfinished(self) -> bool:
        """True when unfinished turns can match."""
        return not self.words or bool({*self.words} & {*STATUSES["unfinished"]})

    @property
    def finished(self) -> bool:
        """True when finished turns can match."""
        return not self.words or bool({*self.words} - {*STATUSES["unfinished"]})


class Place(NamedTuple):
    """A place in the list of finished turns, newest first: when one finished (ms), and its id."""

    at: int
    turn_id: str

    def __str__(self) -> str:
        return f"{self.at}.{self.turn_id}"

    @classmethod
    def parse(cls, text: str) -> Place:
        """Read what ``str`` wrote.

        Raises:
            ValueError: this is no place.
        """
        at, _, turn_id = text.partition(".")
        if not (at.isascii() and at.isdecimal() and len(at) <= 15):
            raise ValueError(f"not a place in the list: {text[:80]!r}")
        shard_of(turn_id)
        return cls(int(at), turn_id)


class Found(NamedTuple):
    """A turn that matches, with what lists sort by. Times in milliseconds, 0 when not yet; strikes: workers lost."""

    turn_id: str
    status: str
    created_at: int
    finished_at: int
    strikes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedPage:
    """Some finished turns, newest first. ``older`` is where to go on; None when there are no more."""

    turns: tuple[Turn, ...]
    older: Place | None


class TurnLists:
    """Lists of turns. Each method raises ``StoreUnavailable`` when the store does not answer.

    The turns in them come without their answers (``response``), which may be long.
    """

    def __init__(self, store: Store) -> None:
        self._redis, self._ask = store.redis, store.ask
        self._shards = store.shards
        self._namespace = store.namespace
        self._select = store.redis.register_script((_LUA / "select.lua").read_text())

    async def unfinished(self, search: Search) -> list[Found]:
        """Every unfinished turn that matches, oldest first; of more than ``LOOK_AT_MOST`` those looked after first."""
        found: list[Found] = []
        for keys in self._shards:
            ids = [raw.decode() for raw in await self._ask(self._redis.zrange(keys.due, 0, LOOK_AT_MOST - 1))]
            for start in range(0, len(ids), _BATCH):
                found += await self._matching(keys, ids[start : start + _BATCH], search)
        known = {*STATUSES["unfinished"]}  # due may still name one that finished this moment
        return sorted((each for each in found if each.status in known), key=lambda each: each.created_at)

    async def finished(self, search: Search, *, before: Place | None = None, count: int) -> FinishedPage:
        """The next ``count`` finished turns that match, from ``before`` on."""
        found: list[Found] = []
        looked, last = 0, None
        async for batch in self._batches(before):
            matching = {each.turn_id: each for each in await self._match(batch, search)}
            for place in batch:
                looked, last = looked + 1, place
                if place.turn_id in matching:
                    found.append(matching[place.turn_id])
                if len(found) == count or looked == LOOK_AT_MOST:
                    return FinishedPage(turns=tuple(await self.read(each.turn_id for each in found)), older=last)
        return FinishedPage(turns=tuple(await self.read(each.turn_id for each in found)), older=None)

    async def newest_finished(self, search: Search, *, since: float, at_most: int) -> list[Found]:
        """What finished after ``since`` (seconds since the epoch), newest first, without the records."""
        found: list[Found] = []
        async for batch in self._batches(None):
            recent = [place for place in batch if place.at >= since * 1000]
            found += await self._match(recent, search)
            if len(recent) < len(batch) or len(found) >= at_most:
                break
        return found[:at_most]

    async def dead(self, count: int) -> tuple[int, list[Turn]]:
        """How many dead letters there are, and the newest ``count`` of them."""
        return await self._first([keys.dead for keys in self._shards], count, newest=True)

    async def is_dead_letter(self, turn_id: str) -> bool:
        """Whether a turn is on the dead letter list; one that was dropped or replayed is not."""
        return await self._ask(self._redis.zscore(keys_of(self._namespace, turn_id).dead, turn_id)) is not None

    async def parked(self, count: int) -> tuple[int, list[Turn]]:
        """How many turns wait for a person, and the ``count`` that wait longest."""
        return await self._first([keys.inbox for keys in self._shards], count, newest=False)

    async def _first(self, sets: list[str], count: int, *, newest: bool) -> tuple[int, list[Turn]]:
        total, first = 0, []
        for name in sets:
            total += await self._ask(self._redis.zcard(name))
            first += await self._ask(self._redis.zrange(name, 0, count - 1, desc=newest, withscores=True))
        first.sort(key=lambda each: each[1], reverse=newest)
        return total, await self.read(raw.decode() for raw, _ in first[:count])

    async def read(self, turn_ids: Iterable[str]) -> list[Turn]:
        """The turns with these ids, in this order; without those that are gone."""
        pipe = self._redis.pipeline(transaction=False)
        for turn_id in turn_ids:
            keys = keys_of(self._namespace, turn_id)
            pipe.hmget(keys.turn(turn_id), _FIELDS)
            pipe.hget(keys.texts(turn_id), "request")
        turns = []
        found = await self._ask(pipe.execute())
        for values, request in zip(found[::2], found[1::2], strict=True):
            stored = {name.encode(): value for name, value in zip(_FIELDS, values, strict=True) if value is not None}
            if request is not None:  # else the record is of version 1, and has it
                stored[b"request"] = request
            with suppress(ValueError):  # gone, or damaged: `turns show` tells which
                turns.append(decode_turn(stored))
        return turns

    async def attempt_starts(self, turns: Iterable[Turn]) -> dict[str, float]:
        """When the present attempt of each turn began, in seconds since the epoch; 0 when it has not."""
        turns = list(turns)
        pipe = self._redis.pipeline(transaction=False)
        for turn in turns:
            pipe.hget(keys_of(self._namespace, turn.turn_id).attempts(turn.turn_id), f"{turn.attempt}:started_at")
        found = await self._ask(pipe.execute())
        return {turn.turn_id: int(at or 0) / 1000 for turn, at in zip(turns, found, strict=True)}

    async def _batches(self, before: Place | None) -> AsyncGenerator[list[Place]]:
        """Finished turns behind ``before``, newest first, over all shards."""
        positions = [
            await self._ask(self._redis.zcount(keys.finished, f"({before.at}", "+inf")) if before else 0
            for keys in self._shards
        ]
        last = before
        while True:
            waiting: list[tuple[Place, int]] = []
            for shard, keys in enumerate(self._shards):
                start = positions[shard]
                found = await self._ask(
                    self._redis.zrange(keys.finished, start, start + _BATCH - 1, desc=True, withscores=True)
                )
                waiting += [(Place(int(score), raw.decode()), shard) for raw, score in found]
            batch = heapq.nlargest(_BATCH, waiting) if len(self._shards) > 1 else waiting
            for shard, count in Counter(shard for _, shard in batch).items():
                positions[shard] += count
            # What finished meanwhile has pushed the others on: nothing is given twice.
            yield [place for place, _ in batch if last is None or place < last]
            if len(waiting) < _BATCH:
                return
            last = batch[-1][0]

    async def _match(self, places: list[Place], search: Search) -> list[Found]:
        if len(self._shards) == 1:
            return await self._matching(self._shards[0], [place.turn_id for place in places], search)
        by_shard: dict[int, list[str]] = {}
        for place in places:
            by_shard.setdefault(shard_of(place.turn_id), []).append(place.turn_id)
        found: dict[str, Found] = {}
        for shard, ids in by_shard.items():
            matching = await self._matching(Keys(self._namespace, shard), ids, search)
            found |= {each.turn_id: each for each in matching}
        return [found[place.turn_id] for place in places if place.turn_id in found]

    async def _matching(self, keys: Keys, ids: list[str], search: Search) -> list[Found]:
        if not ids:
            return []
        records = [keys.turn(turn_id) for turn_id in ids]
        wanted = [search.owner, search.session_id, "1" if search.lost else "", *search.words]
        answer = await self._ask(self._select(keys=records, args=wanted))
        return [Found(ids[place - 1], status.decode(), *map(int, numbers)) for place, status, *numbers in answer]
