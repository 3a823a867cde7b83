"""Following a turn's events: log first, bell second (docs/events.md).

A reader holds a position, not a queue. The bell carries each event to readers who are awake; on subscribing, on a gap
and on every ping the log is read, so a reader that starts late, lags or loses its connection misses nothing and sees
nothing twice.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from api_client.contract.errors import StoreUnavailable, TurnNotFound
from api_client.contract.events import Event
from api_client.contract.keys import keys_of
from api_client.store import heed_cancellation

if TYPE_CHECKING:
    from redis.asyncio import Redis
    from redis.asyncio.client import PubSub

#: How many events one read of the log brings at most: what a reader that does not read costs in memory.
_PAGE = 50
#: How long the store may be away before a reader gives up, in seconds.
_PATIENCE_SECONDS = 60.0
_RECONNECT_SECONDS = 0.25
_CONFIRM_SECONDS = 2.0


async def follow(
    redis: Redis, namespace: str, turn_id: str, *, after: int, ping_seconds: float
) -> AsyncGenerator[Event | None]:
    """Every event after number ``after``, once and in order, to the last. ``None`` after ``ping_seconds`` of silence.

    Raises:
        StoreUnavailable: the store was away for longer than a minute.
        TurnNotFound: the store no longer has the turn.
    """
    position, away_since = after, 0.0
    while True:
        try:
            async with redis.pubsub(ignore_subscribe_messages=True) as bell:
                await bell.subscribe(keys_of(namespace, turn_id).bell(turn_id))
                # The confirmation: from here on no event can slip between the log's reading and the bell.
                await bell.get_message(timeout=_CONFIRM_SECONDS)
                found = _listen(redis, bell, namespace, turn_id, position, ping_seconds)
                async with aclosing(found) as events:
                    async for event in events:
                        away_since = 0.0
                        if event is not None:
                            position = event.seq
                        yield event
                        if event is not None and event.final:
                            return
        except (RedisConnectionError, RedisTimeoutError, OSError) as error:
            away_since = away_since or time.monotonic()
            if time.monotonic() - away_since > _PATIENCE_SECONDS:
                raise StoreUnavailable(type(error).__name__) from error
            yield None
            await asyncio.sleep(min(_RECONNECT_SECONDS, ping_seconds))
        except RedisError as error:
            raise StoreUnavailable(type(error).__name__) from error


async def _listen(
    redis: Redis, bell: PubSub, namespace: str, turn_id: str, position: int, ping_seconds: float
) -> AsyncGenerator[Event | None]:
    """One connection's worth of events: the log up to now, then what the bell brings, then the log again on a gap."""
    log_key = keys_of(namespace, turn_id).log(turn_id)
    behind = True
    while True:
        while behind:
            entries: list[Any] = await redis.xrange(log_key, min=f"({position}-0", count=_PAGE) or []
            for _, fields in entries:
                event = Event.decode(fields[b"e"])
                position = event.seq
                yield event
            behind = len(entries) == _PAGE
        message = await bell.get_message(timeout=ping_seconds)
        heed_cancellation()
        if message is None and position and not await redis.exists(log_key):
            raise TurnNotFound(turn_id)  # the store lost it: waiting longer would be waiting for ever
        if message is None:
            behind = True  # a bell can be missed; the ping is when we notice
            yield None
            continue
        rung = _rung(message["data"])
        if rung is None or rung.seq > position + 1:
            behind = True
        elif rung.seq == position + 1:
            position = rung.seq
            yield rung


async def read_log(redis: Redis, namespace: str, turn_id: str) -> list[Event]:
    """Every event of the turn up to now. Raises ``RedisError`` when the store does not answer."""
    log_key, found = keys_of(namespace, turn_id).log(turn_id), list[Event]()
    while True:
        start = f"({found[-1].seq}-0" if found else "-"
        entries: list[Any] = await redis.xrange(log_key, min=start, count=_PAGE) or []
        found += [Event.decode(fields[b"e"]) for _, fields in entries]
        if len(entries) < _PAGE:
            return found


def _rung(data: bytes) -> Event | None:
    """The event a bell message carries; None for anything else, for only the log is the truth."""
    try:
        return Event.decode(data)
    except ValueError:
        return None
