"""Shortens the retention of finished turns to the current settings; nothing is prolonged."""

from __future__ import annotations

import time
from pathlib import Path

from api_client.contract.keys import keys_for_turn
from api_client.contract.turn import Outcome
from api_client.index.lists import TurnLists
from api_client.index.search import FoundTurn, Search
from api_client.index.selection import _BATCH, select_turns
from api_client.index.text_indexer import TextIndexer
from api_client.policies.stored_policies import clear_policies
from api_client.store import Store

_SWEEP = Path(__file__).with_name("lua") / "sweep.lua"


async def clear(
    store: Store, *, dry_run: bool, events: float | None = None, attempts: float | None = None
) -> dict[str, int]:
    """Delete data of finished turns that is older than the given retention. Return the number of deletions by kind.

    ``events`` and ``attempts`` are seconds after the turn's end; None means as long as the record. May be killed and
    repeated. Raises the errors of ``Store.send_command``.
    """
    now, settings = time.time(), store.settings
    lives = {
        "records": settings.retention_seconds,
        "events": events or settings.retention_seconds,
        "attempts": attempts or settings.retention_seconds,
    }
    found = await select_turns(TurnLists(store), Search(), only="finished")
    over, sessions = dict.fromkeys(lives, 0), set[str]()
    for start in range(0, len(found), _BATCH):
        batch = [turn for turn in found[start : start + _BATCH] if turn.status != Outcome.DEAD]
        if not dry_run:  # before the records go, which name the sessions
            await _sweep_histories(store, batch, sessions)
        for what, gone in (await _shorten(store, batch, lives, now, dry_run)).items():
            over[what] += gone
    if not dry_run:
        oldest = int((now - settings.retention_seconds) * 1000)
        await store.await_reply(store.redis.zremrangebyscore(store.keys.finished, "-inf", oldest))
        await TextIndexer(store).prune()
    return over | {"policies": await clear_policies(store, dry_run=dry_run)}


async def _shorten(
    store: Store, turns: list[FoundTurn], lives: dict[str, float], now: float, dry_run: bool
) -> dict[str, int]:
    looks, ends = store.redis.pipeline(transaction=False), store.redis.pipeline(transaction=False)
    order: list[str] = []
    for turn in turns:
        keys = keys_for_turn(store.namespace, turn.turn_id)
        named = (keys.turn(turn.turn_id), keys.log(turn.turn_id), keys.attempts(turn.turn_id))
        for (what, life), key in zip(lives.items(), named, strict=True):
            end = turn.finished_at / 1000 + min(life, lives["records"])
            if end < now:
                looks.exists(key)
                order.append(what)
            ends.pexpireat(key, int(end * 1000), lt=True)
        ends.pexpireat(keys.texts(turn.turn_id), turn.finished_at + int(lives["records"] * 1000), lt=True)
    there = await store.await_reply(looks.execute())
    if not dry_run:
        if lives["attempts"] < lives["records"]:
            await _keep_answers(store, turns)
        await store.await_reply(ends.execute())
    gone = [what for what, is_there in zip(order, there, strict=True) if is_there]
    return {what: gone.count(what) for what in lives}


async def _sweep_histories(store: Store, turns: list[FoundTurn], swept: set[str]) -> None:
    """Delete earlier messages that have outlived their turns, in sessions not yet listed in ``swept``."""
    looks, sweep = store.redis.pipeline(transaction=False), store.load_command(_SWEEP)
    for turn in turns:
        looks.hmget(store.keys.turn(turn.turn_id), "session_id", "history")
    for turn, (session, history) in zip(turns, await store.await_reply(looks.execute()), strict=True):
        if history and (name := session.decode("utf-8", "surrogatepass")) not in swept:
            await store.run_command(sweep, turn.turn_id, name, {})
            swept.add(name)


async def _keep_answers(store: Store, turns: list[FoundTurn]) -> None:
    """Copy long answers from attempts to turn records, because attempts expire first."""
    looks = store.redis.pipeline(transaction=False)
    for turn in turns:
        looks.hget(keys_for_turn(store.namespace, turn.turn_id).turn(turn.turn_id), "response_in")
    for turn, place in zip(turns, await store.await_reply(looks.execute()), strict=True):
        keys = keys_for_turn(store.namespace, turn.turn_id)
        if (
            place
            and (text := await store.await_reply(store.redis.hget(keys.attempts(turn.turn_id), place))) is not None
        ):
            await store.await_reply(store.redis.hset(keys.texts(turn.turn_id), "response", text))
