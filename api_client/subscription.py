"""A connection to the store that listens to channels, made as ``connection.py`` makes its own, and as cheap."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any, Protocol

import hiredis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError

from api_client.connection import NOT_YET, Opened


class Listener(Protocol):
    """What a subscription calls, in its loop."""

    def subscribed(self, channel: bytes) -> None:
        """From here on no message of the channel is missed; every subscription to it was confirmed."""

    def heard(self, channel: bytes, data: bytes) -> None:
        """A message came."""

    def lost(self, error: Exception) -> None:
        """The connection was lost, and every channel with it. Called once, unless ``end`` was called before."""


class Subscription(asyncio.Protocol):
    """One connection that was made, until it is lost or ended. Used by its loop alone.

    Attributes:
        heard_at: when the store said something for the last time, by the loop's clock.
    """

    def __init__(self, connection: Opened, listener: Listener) -> None:
        self._connection = connection
        self._transport, self._reader = connection.transport, connection.reader
        self._listener = listener
        self._unconfirmed = Counter[bytes]()
        self._loop = asyncio.get_running_loop()
        self._ended = False
        self.heard_at = self._loop.time()
        self._transport.set_protocol(self)

    @property
    def usable(self) -> bool:
        """Whether it takes commands: it has not ended, nor has its loop (a program may run one after another)."""
        return not self._ended and self._loop is asyncio.get_running_loop()

    def subscribe(self, channel: bytes) -> None:
        """Listen to a channel, once that is confirmed."""
        self._unconfirmed[channel] += 1
        self._transport.write(_packed(b"SUBSCRIBE", channel))

    def unsubscribe(self, channel: bytes) -> None:
        """Listen to it no more."""
        self._transport.write(_packed(b"UNSUBSCRIBE", channel))

    def data_received(self, data: bytes) -> None:
        """Hand on what the store says."""
        self.heard_at = self._loop.time()
        self._reader.feed(data)
        while (said := self._reader.gets()) is not NOT_YET and not self._ended:
            if isinstance(said, Exception):
                self._lose(said)
                return
            self._hear(said)

    def _hear(self, said: Any) -> None:
        if said[0] == b"message":
            self._listener.heard(said[1], said[2])
        elif said[0] == b"subscribe":
            self._unconfirmed[said[1]] -= 1
            if not self._unconfirmed[said[1]]:
                del self._unconfirmed[said[1]]
                self._listener.subscribed(said[1])

    def connection_lost(self, exc: Exception | None) -> None:
        """The store closed the connection, or it broke."""
        self._lose(exc if isinstance(exc, RedisError) else RedisConnectionError(str(exc or "the store hung up")))

    def _lose(self, error: Exception) -> None:
        if not self._ended:
            self.end()
            self._listener.lost(error)

    def end(self) -> None:
        """Give the connection up."""
        if not self._ended:
            self._ended = True
            if not self._loop.is_closed():
                self._connection.close()


def _packed(*words: bytes) -> bytes:
    packed: bytes = hiredis.pack_command(words)  # type: ignore[arg-type]  # its stub says: of one word
    return packed
