"""Follows a turn's events by its log and its wake-up channel (docs/events.md).

Events arrive by the channel; after a gap or a ping the reader continues with the log. If the log no longer has the
reader's last event, the store lost the end of the log, and the reader starts again with ``log.reset``.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from api_client.contract.errors import StoreUnavailable, TurnNotFound
from api_client.contract.events import Event, reset_event
from api_client.contract.keys import keys_for_turn
from api_client.store import heed_cancellation
from api_client.turns.channels import ChannelHub, ChannelSubscriber

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from redis.asyncio import Redis


#: Events per read, to bound the memory of a slow reader.
_PAGE = 50
_PATIENCE_SECONDS = 60.0
_RECONNECT_SECONDS = 0.25


class Position(NamedTuple):
    """The position of the last event that a reader saw. ``at`` is in milliseconds, or 0 if unknown."""

    seq: int
    at: int = 0


#: Sends one command to the store. Raises ``RedisError`` if the store does not answer.
Ask: TypeAlias = "Callable[..., Awaitable[Any]]"


class EndUnreadable(Exception):
    """Raised when the last event of a turn has a kind or version that this program cannot read."""


async def follow_events(
    ask: Ask, channels: ChannelHub, namespace: str, turn_id: str, *, after: Position, ping_seconds: float
) -> AsyncGenerator[Event | None]:
    """Yield every event after position ``after`` once and in order, and None after ``ping_seconds`` without one.

    After an event ``log.reset`` all events follow from the start. Raises ``StoreUnavailable`` if the store was away for
    more than a minute, ``TurnNotFound`` if it lost the turn, ``EndUnreadable`` if the remaining events cannot be read.
    """
    position, away_since = after, 0.0
    while True:
        try:
            # From here on no event can be lost between the log and the channel.
            async with channels.subscribe(keys_for_turn(namespace, turn_id).wake_up_channel(turn_id)) as subscriber:
                found = _follow_connection(ask, subscriber, namespace, turn_id, position, ping_seconds)
                async with aclosing(found) as events:
                    async for event in events:
                        away_since = 0.0
                        if event is not None:
                            position = Position(event.seq, event.at_ms)
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


async def _follow_connection(
    ask: Ask, subscriber: ChannelSubscriber, namespace: str, turn_id: str, position: Position, ping_seconds: float
) -> AsyncGenerator[Event | None]:
    log_key = keys_for_turn(namespace, turn_id).log(turn_id)
    behind, page, unread = True, "", False
    while True:
        while behind:
            entries: list[Any] = await ask("XRANGE", log_key, page or f"{position.seq}-0", "+", "COUNT", _PAGE)
            if not entries and not await ask("EXISTS", log_key):
                raise TurnNotFound(turn_id)  # the store lost the turn, so waiting would never end
            found = _decode_entries(entries)
            known = any(event.seq == position.seq and position.at in {0, event.at_ms} for event in found)
            if position.seq and not page and not known:
                position = Position(0)
                yield reset_event("the store lost the end of its log")
                continue
            for event in found:
                if event.seq > position.seq:
                    position = Position(event.seq, event.at_ms)
                    yield event
            behind = len(entries) == _PAGE
            page = f"({entries[-1][0].decode()}" if behind else ""
            unread = bool(entries) and position.seq < int(entries[-1][0].partition(b"-")[0])
        if unread and await ask("HGET", keys_for_turn(namespace, turn_id).turn(turn_id), "state") == b"finished":
            raise EndUnreadable
        heed_cancellation()
        heard = await subscriber.next_event(ping_seconds)
        heed_cancellation()
        if heard is None:
            behind = True  # a wake-up may be lost, which the ping corrects
            yield None
            continue
        rung = Event.decode_entry(heard)  # other messages carry no event, because only the log counts
        for event in rung:
            # A known number with a later time replaced the event seen before.
            if event.seq > position.seq + 1 or (event.seq <= position.seq and event.at_ms > position.at):
                behind = True
                break
            if event.seq == position.seq + 1:
                position = Position(event.seq, event.at_ms)
                yield event
        behind = behind or not rung


async def read_log(redis: Redis, namespace: str, turn_id: str) -> list[Event]:
    """Return all events that a turn has stored so far. Raises ``RedisError`` if the store does not answer."""
    log_key, found, start = keys_for_turn(namespace, turn_id).log(turn_id), list[Event](), "-"
    while True:
        entries: list[Any] = await redis.xrange(log_key, min=start, count=_PAGE) or []
        found += _decode_entries(entries)
        if len(entries) < _PAGE:
            return found
        start = f"({entries[-1][0].decode()}"


def _decode_entries(entries: Iterable[Any]) -> list[Event]:
    found = list[Event]()
    for _, words in entries:
        fields = words if isinstance(words, dict) else dict(zip(words[::2], words[1::2], strict=True))
        found += Event.decode_entry(fields.get(b"e", b""))
    return found
