"""Following a turn's events: log first, bell second (docs/events.md).

A reader holds a position: the number of the last event it saw, and when that was written. The bell carries events to
readers who are awake; on subscribing, on a gap and on every ping the log is read, from the last event on, so nothing is
missed or seen twice. If another event is in its place, or none, the store lost the end of its log (its power failed, or
another server took over that was behind), and the reader begins again (``log.reset``).
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
from api_client.contract.events import Event, reset
from api_client.contract.keys import keys_of
from api_client.store import heed_cancellation
from api_client.turns.bells import Bells, Ear

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from redis.asyncio import Redis


#: How many events one read of the log brings at most: what a reader that does not read costs in memory.
_PAGE = 50
#: How long the store may be away before a reader gives up, in seconds.
_PATIENCE_SECONDS = 60.0
_RECONNECT_SECONDS = 0.25


class Position(NamedTuple):
    """The last event a reader saw: its number, and when it was written in milliseconds; 0 when that is not known."""

    seq: int
    at: int = 0


#: Asks the store for one command. Raises ``RedisError`` when it does not answer.
Ask: TypeAlias = "Callable[..., Awaitable[Any]]"


class EndUnreadable(Exception):
    """The turn has ended, and its last event is of a form that this version does not know."""


async def follow(
    ask: Ask, bells: Bells, namespace: str, turn_id: str, *, after: Position, ping_seconds: float
) -> AsyncGenerator[Event | None]:
    """Every event behind ``after``, once and in order, to the last. ``None`` after ``ping_seconds`` of silence.

    A ``log.reset`` among them says that the store no longer has what this reader saw: all events follow from the start.
    Raises ``StoreUnavailable``: the store was away for longer than a minute. ``TurnNotFound``: the store no longer has
    the turn. ``EndUnreadable``: nothing more can be read.
    """
    position, away_since = after, 0.0
    while True:
        try:
            # From here on no event can slip between the log's reading and the bell.
            async with bells.listen(keys_of(namespace, turn_id).bell(turn_id)) as bell:
                found = _listen(ask, bell, namespace, turn_id, position, ping_seconds)
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


async def _listen(
    ask: Ask, bell: Ear, namespace: str, turn_id: str, position: Position, ping_seconds: float
) -> AsyncGenerator[Event | None]:
    """One connection's worth of events: the log up to now, then what the bell brings, then the log again on a gap."""
    log_key = keys_of(namespace, turn_id).log(turn_id)
    behind, page, unread = True, "", False
    while True:
        while behind:
            entries: list[Any] = await ask("XRANGE", log_key, page or f"{position.seq}-0", "+", "COUNT", _PAGE)
            if not entries and not await ask("EXISTS", log_key):
                raise TurnNotFound(turn_id)  # the store lost it: waiting longer would be waiting for ever
            found = _events(entries)
            if position.seq and not page and not _holds(found, position):
                position = Position(0)
                yield reset("the store lost the end of its log")
                continue
            for event in found:
                if event.seq > position.seq:
                    position = Position(event.seq, event.at_ms)
                    yield event
            behind = len(entries) == _PAGE
            page = f"({entries[-1][0].decode()}" if behind else ""
            unread = bool(entries) and position.seq < int(entries[-1][0].partition(b"-")[0])
        if unread and await ask("HGET", keys_of(namespace, turn_id).turn(turn_id), "state") == b"finished":
            raise EndUnreadable
        heed_cancellation()
        heard = await bell.next(ping_seconds)
        heed_cancellation()
        if heard is None:
            behind = True  # a bell can be missed; the ping is when we see it
            yield None
            continue
        rung = Event.decode_entry(heard)  # none of anything else, for only the log is the truth
        for event in rung:
            # One that was read already is not news, unless it was written later: then it is another one in its place.
            if event.seq > position.seq + 1 or (event.seq <= position.seq and event.at_ms > position.at):
                behind = True
                break
            if event.seq == position.seq + 1:
                position = Position(event.seq, event.at_ms)
                yield event
        behind = behind or not rung


async def read_log(redis: Redis, namespace: str, turn_id: str) -> list[Event]:
    """Every event of the turn up to now. Raises ``RedisError`` when the store does not answer."""
    log_key, found, start = keys_of(namespace, turn_id).log(turn_id), list[Event](), "-"
    while True:
        entries: list[Any] = await redis.xrange(log_key, min=start, count=_PAGE) or []
        found += _events(entries)
        if len(entries) < _PAGE:
            return found
        start = f"({entries[-1][0].decode()}"


def _holds(events: list[Event], position: Position) -> bool:
    """True when the log that was read from this position on has its event."""
    return any(event.seq == position.seq and position.at in {0, event.at_ms} for event in events)


def _events(entries: Iterable[Any]) -> list[Event]:
    """The events of the log's entries; an entry of a form that this version does not know is left out."""
    found = list[Event]()
    for _, words in entries:
        fields = words if isinstance(words, dict) else dict(zip(words[::2], words[1::2], strict=True))
        found += Event.decode_entry(fields.get(b"e", b""))
    return found
