"""Wake-up channels of followed turns: all readers of a client share one pub/sub connection."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

from redis.exceptions import ConnectionError as RedisConnectionError

from api_client.store import Store
from api_client.store.connection import Subscription

#: Received instead of an event if events may have been missed, so that the reader reads the log.
LOOK: Final = b""
#: Events kept for a slow reader; after more, the reader reads the log.
_MOST = 256
_CONFIRM_SECONDS = 2.0


@dataclass(slots=True, eq=False)
class ChannelSubscriber:
    """A reader's subscription to a turn's wake-up channel."""

    _heard: deque[bytes] = field(default_factory=deque)
    _rung: asyncio.Event = field(default_factory=asyncio.Event)
    _lost: Exception | None = None

    async def next_event(self, seconds: float) -> bytes | None:
        """Return the next event, ``LOOK`` if the log must be read again, or None after ``seconds`` without events.

        Raises ``RedisError`` or ``OSError`` if the connection was lost, and events with it.
        """
        if not self._heard and self._lost is None:
            self._rung.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._rung.wait()
        if self._heard:
            return self._heard.popleft()
        if self._lost is not None:
            raise self._lost
        return None

    def deliver(self, data: bytes) -> None:
        """Pass an event to the reader, or ``LOOK`` if too many events are queued."""
        if len(self._heard) >= _MOST:
            self._heard.clear()
            data = LOOK
        self._heard.append(data)
        self._rung.set()

    def fail(self, error: Exception) -> None:
        self._lost = error
        self._rung.set()


@dataclass(slots=True, eq=False)
class _Channel:
    subscribers: set[ChannelSubscriber] = field(default_factory=set)
    confirmed: asyncio.Event = field(default_factory=asyncio.Event)


class ChannelHub:
    """Shares one pub/sub connection among all readers of turns' events."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._channels: dict[bytes, _Channel] = {}
        self._line: Subscription | None = None
        self._opening: asyncio.Task[Subscription] | None = None

    @asynccontextmanager
    async def subscribe(self, name: str) -> AsyncIterator[ChannelSubscriber]:
        """Subscribe to the channel ``name`` within the ``async with`` block, and yield the subscription.

        Raises ``RedisError`` or ``OSError`` if the store does not answer.
        """
        line = self._line
        if line is None or not line.usable:
            line = await self._shared_connection()
            if line is not self._line:
                raise RedisConnectionError("the connection was lost")
        key, subscriber = name.encode(), ChannelSubscriber()
        channel = self._channels.get(key)
        if channel is None:
            channel = self._channels[key] = _Channel()
            line.subscribe(key)
        channel.subscribers.add(subscriber)
        try:
            if not channel.confirmed.is_set():
                await self._await_confirmation(channel, line)
            yield subscriber
        finally:
            self._unsubscribe(key, channel, subscriber)

    async def close(self) -> None:
        """Close the connection. Remaining readers receive a connection error."""
        if self._opening and not self._opening.done():
            await asyncio.wait([self._opening])
        self.on_lost(RedisConnectionError("the client was closed"))

    async def _shared_connection(self) -> Subscription:
        """Open one connection for all concurrent callers. Cancelling one caller does not affect the others."""
        if self._opening is None or self._opening.done() or self._opening.get_loop() is not asyncio.get_running_loop():
            self._opening = asyncio.create_task(self._open_connection(), name="wake-up channels")
            # Callers that were cancelled no longer ask for its error.
            self._opening.add_done_callback(lambda opening: opening.cancelled() or opening.exception())
        return await asyncio.shield(self._opening)

    async def _open_connection(self) -> Subscription:
        made = await self._store.open_subscription(self)
        # The earlier connection belongs to an ended event loop.
        self.on_lost(RedisConnectionError("another connection was made"))
        self._line = made
        return made

    async def _await_confirmation(self, channel: _Channel, line: Subscription) -> None:
        asked_at = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(_CONFIRM_SECONDS):
                await channel.confirmed.wait()
        except TimeoutError:
            error = RedisConnectionError("the subscription was not confirmed")
            if line is self._line and line.heard_at <= asked_at:
                self.on_lost(error)
            raise error from None

    def _unsubscribe(self, key: bytes, channel: _Channel, subscriber: ChannelSubscriber) -> None:
        channel.subscribers.discard(subscriber)
        if channel.subscribers or self._channels.get(key) is not channel:
            return
        del self._channels[key]
        if self._line is not None and self._line.usable:
            self._line.unsubscribe(key)

    def on_subscribed(self, channel: bytes) -> None:
        """Record that the store has confirmed the subscription to a channel."""
        if found := self._channels.get(channel):
            found.confirmed.set()

    def on_message(self, channel: bytes, data: bytes) -> None:
        if found := self._channels.get(channel):
            for subscriber in found.subscribers:
                subscriber.deliver(data)

    def on_lost(self, error: Exception) -> None:
        channels, self._channels = self._channels, {}
        line, self._line = self._line, None
        if line is not None:
            line.end()
        for channel in channels.values():
            channel.confirmed.set()
            for subscriber in channel.subscribers:
                subscriber.fail(error)
