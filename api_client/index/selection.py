"""Selecting turns for bulk actions and for clearing up: all that match a search, in batches; never walks all keys."""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from api_client.contract.issues import NotFinished, TurnNotFound
from api_client.contract.keys import keys_of
from api_client.contract.turn import Outcome, Turn
from api_client.index import Found, Search, TurnLists
from api_client.policies.kept import clear_policies
from api_client.store import Store
from api_client.turns.reader import TurnReader

#: Requests that are read at once, where their text decides.
_BATCH = 200


async def select(lists: TurnLists, search: Search, *, only: str = "") -> list[Found]:
    """All turns that match, oldest first; ``only`` ``unfinished``, ``finished`` or ``dead`` ones.

    A dead letter that was dropped is not ``dead`` here. Raises as ``TurnLists``.
    """
    everything = replace(search, sort="newest")
    found: dict[str, Found] = {}
    if only in {"", "unfinished"}:
        found |= {each.turn_id: each for each in await lists.unfinished(everything)}
    if only in {"", "finished"}:
        finished = await lists.newest_finished(everything, since=search.since, at_most=sys.maxsize)
        found |= {each.turn_id: each for each in finished}
    if only != "unfinished":  # a dead letter is kept for longer than the list of finished turns
        found |= {each.turn_id: each for each in await lists.dead_letters(everything)}
    chosen = [each for each in found.values() if search.in_time((each.finished_at or each.created_at) / 1000)]
    if search.text:
        says = set[str]()
        for start in range(0, len(chosen), _BATCH):
            read = await lists.read(each.turn_id for each in chosen[start : start + _BATCH])
            says |= {turn.turn_id for turn in read if search.says(turn)}
        chosen = [each for each in chosen if each.turn_id in says]
    return sorted(chosen, key=lambda each: (each.created_at, each.turn_id))


# Clearing up the store: finished turns whose records, events or attempts were to be kept for a shorter time. Each
# finished turn's keys carry their end of life since they finished; this applies what is set now, and never prolongs
# anything. Unfinished and parked turns, and dead letters, have no end of life and get none here.


async def clear(store: Store, *, dry_run: bool) -> dict[str, int]:
    """Shorten the lives of what finished long ago; returns how many records, event logs, attempts and policies go.

    May be killed and repeated: each command is independent. Raises as ``Store.ask``.
    """
    now, settings = time.time(), store.settings
    lives = {
        "records": settings.retention_seconds,
        "events": settings.event_retention_seconds or settings.retention_seconds,
        "attempts": settings.attempt_retention_seconds or settings.retention_seconds,
    }
    found = await select(TurnLists(store), Search(), only="finished")
    over = dict.fromkeys(lives, 0)
    for start in range(0, len(found), _BATCH):
        batch = [turn for turn in found[start : start + _BATCH] if turn.status != Outcome.DEAD]
        for what, gone in (await _shorten(store, batch, lives, now, dry_run)).items():
            over[what] += gone
    if not dry_run:
        oldest = int((now - settings.retention_seconds) * 1000)
        for keys in store.shards:
            await store.ask(store.redis.zremrangebyscore(keys.finished, "-inf", oldest))
    return over | {"policies": await clear_policies(store, dry_run=dry_run)}


async def _shorten(
    store: Store, turns: list[Found], lives: dict[str, float], now: float, dry_run: bool
) -> dict[str, int]:
    looks, ends = store.redis.pipeline(transaction=False), store.redis.pipeline(transaction=False)
    order: list[str] = []
    for turn in turns:
        keys = keys_of(store.namespace, turn.turn_id)
        named = (keys.turn(turn.turn_id), keys.log(turn.turn_id), keys.attempts(turn.turn_id))
        for (what, life), key in zip(lives.items(), named, strict=True):
            end = turn.finished_at / 1000 + min(life, lives["records"])
            if end < now:
                looks.exists(key)
                order.append(what)
            ends.pexpireat(key, int(end * 1000), lt=True)
        ends.pexpireat(keys.texts(turn.turn_id), turn.finished_at + int(lives["records"] * 1000), lt=True)
    there = await store.ask(looks.execute())
    if not dry_run:
        if lives["attempts"] < lives["records"]:
            await _keep_answers(store, turns)
        await store.ask(ends.execute())
    gone = [what for what, is_there in zip(order, there, strict=True) if is_there]
    return {what: gone.count(what) for what in lives}


async def _keep_answers(store: Store, turns: list[Found]) -> None:
    """Copy long answers out of the attempts, which go before the records."""
    looks = store.redis.pipeline(transaction=False)
    for turn in turns:
        looks.hget(keys_of(store.namespace, turn.turn_id).turn(turn.turn_id), "response_in")
    for turn, place in zip(turns, await store.ask(looks.execute()), strict=True):
        keys = keys_of(store.namespace, turn.turn_id)
        if place and (text := await store.ask(store.redis.hget(keys.attempts(turn.turn_id), place))) is not None:
            await store.ask(store.redis.hset(keys.texts(turn.turn_id), "response", text))


# Dead letters: turns that took down their workers too often. They stay until an operator drops them.

_DROP = Path(__file__).with_name("lua") / "drop.lua"


class DeadLetters:
    """The dead letter list. Every method raises ``StoreUnavailable`` when the store does not answer."""

    def __init__(self, store: Store, reader: TurnReader) -> None:
        self._store = store
        self._redis, self._ask = store.redis, store.ask
        self._reader = reader
        self._drop = store.command(_DROP)

    async def all(self) -> list[Turn]:
        """All of them, oldest first."""
        found: list[Turn] = []
        for keys in self._store.shards:
            for turn_id in await self._ask(self._redis.zrange(keys.dead, 0, -1)):
                with suppress(TurnNotFound):  # dropped meanwhile
                    found.append(await self._reader.get(turn_id.decode()))
        return sorted(found, key=lambda turn: turn.finished_at)

    async def drop(self, turn_id: str) -> None:
        """Take a turn off the list; it is then kept as long as any finished turn. Idempotent.

        Raises ``NotFinished``: it is not among them. ``TurnNotFound``: there is no such turn.
        """
        turn = await self._reader.get(turn_id)
        [said] = await self._store.change(self._drop, turn_id, turn.request.session_id, {"owner": turn.request.owner})
        if said == b"alive":
            raise NotFinished(turn_id, "is not a dead letter")
