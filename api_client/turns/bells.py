"""The bells of all turns that a client follows: pub/sub channels over one connection, shared by all readers.

A bell is only a hint: a reader that hears nothing, or too much, reads the log (``stream.py``).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Final

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError

if TYPE_CHECKING:
    from redis.asyncio import Redis
    from redis.asyncio.client import PubSub

#: Heard instead of an event: some may have been missed, so the log is to be read.
LOOK: Final = b""
#: Events kept for a reader that is slow; beyond that it reads the log.
_MOST = 256
_CONFIRM_SECONDS, _WAIT_SECONDS = 2.0, 5.0


class Ear:
    """One reader's place at a channel."""

    def __init__(self) -> None:
        self._heard: deque[bytes] = deque()
        self._rung = asyncio.Event()
        self._lost: Exception | None = None

    async def next(self, seconds: float) -> bytes | None:
        """What was heard next: an event, or ``LOOK``; None when nothing was within ``seconds``.

        Raises:
            RedisError, OSError: the connection was lost, and what was rung meanwhile too.
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

    def hear(self, data: bytes) -> None:
        """Hand an event over."""
        if len(self._heard) >= _MOST:
            self._heard.clear()
            data = LOOK
        self._heard.append(data)
        self._rung.set()

    def lose(self, error: Exception) -> None:
        """The connection was lost."""
        self._lost = error
        self._rung.set()


class _Channel:
    def __init__(self) -> None:
        self.ears: set[Ear] = set()
        self.confirmed = asyncio.Event()


class Bells:
    """One client's subscriptions. The connection is opened for the first reader and given back after the last."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._channels: dict[bytes, _Channel] = {}
        self._pubsub: PubSub | None = None
        self._hearing: asyncio.Task[None] | None = None
        self._lock = asyncio.Lock()
        self._leaving: set[asyncio.Future[None]] = set()

    @asynccontextmanager
    async def listen(self, name: str) -> AsyncIterator[Ear]:
        """Hear a channel; from the beginning of the block on no event of it is missed silently.

        Raises:
            RedisError, OSError: the store does not answer.
        """
        key, ear = name.encode(), Ear()
        joining = asyncio.ensure_future(self._join(key, ear))
        try:
            channel = await asyncio.shield(joining)  # one reader that goes away must not break off the others' command
        except asyncio.CancelledError:
            joining.add_done_callback(lambda done: self._joined_in_vain(done, key, ear))
            raise
        try:
            try:
                async with asyncio.timeout(_CONFIRM_SECONDS):
                    await channel.confirmed.wait()
            except TimeoutError as error:
                raise RedisConnectionError("the subscription was not confirmed") from error
            yield ear
        finally:
            await asyncio.shield(self._leave(key, channel, ear))

    async def close(self) -> None:
        """Close the connection; readers that still listen hear that it was lost."""
        async with self._lock:
            await self._end(RedisConnectionError("the client was closed"))

    async def _join(self, key: bytes, ear: Ear) -> _Channel:
        async with self._lock:
            channel = self._channels.get(key)
            if channel is None:
                if self._pubsub is None:
                    self._pubsub = self._redis.pubsub()
                channel = self._channels[key] = _Channel()
                channel.ears.add(ear)
                try:
                    await self._pubsub.subscribe(key)
                except (RedisError, OSError) as error:
                    await self._end(error)
                    raise
                if self._hearing is None:
                    self._hearing = asyncio.create_task(self._hear(self._pubsub), name="bells")
            channel.ears.add(ear)
            return channel

    def _joined_in_vain(self, joined: asyncio.Future[_Channel], key: bytes, ear: Ear) -> None:
        if not joined.cancelled() and joined.exception() is None:
            leaving = asyncio.ensure_future(self._leave(key, joined.result(), ear))
            self._leaving.add(leaving)
            leaving.add_done_callback(self._leaving.discard)

    async def _leave(self, key: bytes, channel: _Channel, ear: Ear) -> None:
        async with self._lock:
            channel.ears.discard(ear)
            if channel.ears or self._channels.get(key) is not channel:
                return
            del self._channels[key]
            if not self._channels:
                await self._end(RedisConnectionError("nobody listens"))
            elif self._pubsub is not None:
                with suppress(RedisError, OSError):  # then the connection is lost, and its task says so
                    await self._pubsub.unsubscribe(key)

    async def _hear(self, pubsub: PubSub) -> None:
        """Hand each event to the readers of its channel, until the connection is lost."""
        try:
            while True:
                message = await pubsub.get_message(timeout=_WAIT_SECONDS)
                if message is None or (channel := self._channels.get(message["channel"])) is None:
                    continue
                if message["type"] == "subscribe":
                    if channel.confirmed.is_set():  # again, after a connection that was lost and is back
                        self._ring(channel, LOOK)
                    channel.confirmed.set()
                elif message["type"] == "message":
                    self._ring(channel, message["data"])
        except (RedisError, OSError) as error:
            async with self._lock:
                if self._pubsub is pubsub:
                    self._hearing = None  # this very task: it must not wait for itself
                    await self._end(error)

    @staticmethod
    def _ring(channel: _Channel, data: bytes) -> None:
        for ear in channel.ears:
            ear.hear(data)

    async def _end(self, error: Exception) -> None:
        """Give the connection back, and tell everybody who listens why."""
        channels, self._channels = self._channels, {}
        pubsub, self._pubsub = self._pubsub, None
        hearing, self._hearing = self._hearing, None
        for channel in channels.values():
            channel.confirmed.set()
            for ear in channel.ears:
                ear.lose(error)
        if hearing is not None:
            hearing.cancel()
            with suppress(asyncio.CancelledError, RedisError, OSError):
                await hearing
        if pubsub is not None:
            with suppress(RedisError, OSError):
                await pubsub.aclose()  # type: ignore[no-untyped-call]
