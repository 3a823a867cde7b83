"""Clearing up the store: finished turns whose records, events or attempts were to be kept for a shorter time.

Each finished turn's keys carry their end of life since they finished; this applies what is set now, and never prolongs
anything. Unfinished and parked turns, and dead letters, have no end of life and get none here.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from api_client.contract.keys import Keys, keys_of
from api_client.contract.settings import Settings
from api_client.contract.turn import Outcome, TurnState
from api_client.selection import Filter, Selected, select

if TYPE_CHECKING:
    from redis.asyncio import Redis

_BATCH = 200
Ask = Callable[[Awaitable[Any]], Awaitable[Any]]


async def clear(redis: Redis, settings: Settings, ask: Ask, *, dry_run: bool) -> dict[str, int]:
    """Shorten the lives of what finished long ago; returns how many records, event logs and attempts will go now.

    May be killed and repeated: each command stands alone. Raises as ``ask``.
    """
    now = time.time()
    lives = {
        "records": settings.retention_seconds,
        "events": settings.event_retention_seconds or settings.retention_seconds,
        "attempts": settings.attempt_retention_seconds or settings.retention_seconds,
    }
    found = await select(redis, settings, ask, Filter(states=frozenset({TurnState.FINISHED.value})))
    over = dict.fromkeys(lives, 0)
    for start in range(0, len(found), _BATCH):
        batch = [turn for turn in found[start : start + _BATCH] if turn.outcome is not Outcome.DEAD]
        for what, gone in (await _shorten(redis, settings, ask, batch, lives, now, dry_run)).items():
            over[what] += gone
    if not dry_run:
        oldest = int((now - settings.retention_seconds) * 1000)
        for shard in range(settings.shards):
            await ask(redis.zremrangebyscore(Keys(settings.namespace, shard).finished, "-inf", oldest))
    return over


async def _shorten(
    redis: Redis,
    settings: Settings,
    ask: Ask,
    turns: list[Selected],
    lives: dict[str, float],
    now: float,
    dry_run: bool,
) -> dict[str, int]:
    looks, ends = redis.pipeline(transaction=False), redis.pipeline(transaction=False)
    order: list[str] = []
    for turn in turns:
        keys = keys_of(settings.namespace, turn.turn_id)
        named = (keys.turn(turn.turn_id), keys.log(turn.turn_id), keys.attempts(turn.turn_id))
        for (what, life), key in zip(lives.items(), named, strict=True):
            end = turn.finished_at + min(life, lives["records"])
            if end < now:
                looks.exists(key)
                order.append(what)
            ends.pexpireat(key, int(end * 1000), lt=True)
    there = await ask(looks.execute())
    if not dry_run:
        await ask(ends.execute())
    gone = [what for what, is_there in zip(order, there, strict=True) if is_there]
    return {what: gone.count(what) for what in lives}
