"""One connection to the store for a whole event loop: commands that are asked for at the same time leave together.

Nobody waits for a connection, and none is made per command: each command gets the next place in the line, and the
replies come in that order. A connection that is lost, or owes an answer for too long, fails the commands in its
line; the next command makes another one. So it is for commands that may be sent twice, as those of the ledger and
of a submit may. What keeps a connection waiting (WAIT) or brings megabytes goes elsewhere: the line waits behind
it. Who listens to channels has a ``Subscription``.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Awaitable
from typing import Any, Protocol

import hiredis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ReadOnlyError, RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from api_client.contract.settings import Settings
from api_client.store.commands import Word
from api_client.store.connecting import NOT_YET, OpenedConnection, open_store


class Connection:
    """The store, as the coroutines of one loop ask it. Used by that loop alone.

    ``connect_seconds`` bounds each step of connecting and signing in, ``answer_seconds`` how long the store may be
    silent while it owes an answer.
    """

    def __init__(self, settings: Settings, *, connect_seconds: float = 2.0, answer_seconds: float = 5.0) -> None:
        opened = open_store(settings, connect_seconds=connect_seconds, answer_seconds=connect_seconds)
        self._pool: Any = opened.connection_pool  # it makes connections, and keeps none
        self._answer_seconds = answer_seconds
        self._line: _Line | None = None
        self._opening: asyncio.Task[_Line] | None = None

    def ask(self, *words: Word) -> Awaitable[Any]:
        """The reply to one command.

        Raises:
            RedisError: the store does not answer, or answers with an error.
        """
        line = self._line
        return line.ask(words) if line and line.usable else self._ask_another(words)

    async def _ask_another(self, words: tuple[Word, ...]) -> Any:
        return await (await self._opened()).ask(words)

    async def another(self) -> OpenedConnection:
        """Another connection to the same store, for its own purpose.

        Raises:
            RedisError: the store does not answer.
        """
        made = self._pool.make_connection()
        try:
            await made.connect()
        except OSError as error:
            raise RedisConnectionError(str(error)) from error
        return OpenedConnection(made)

    async def close(self) -> None:
        """Close the connection; what still waits for an answer fails."""
        if self._opening and not self._opening.done():
            await asyncio.wait([self._opening])
        if self._line:
            self._line.end(RedisConnectionError("closed"))

    async def _opened(self) -> _Line:
        """A new line. All who need one wait for the same; who goes away does not end it for the others."""
        if self._opening is None or self._opening.done():
            self._opening = asyncio.create_task(self._open(), name="store connection")
        return await asyncio.shield(self._opening)

    async def _open(self) -> _Line:
        self._line = _Line(await self.another(), self._answer_seconds)
        return self._line


class OneConnection(Connection):
    """One connection for all that a loop asks, a command after another: for those who look again and again.

    Attributes:
        redis: the same connection, as redis-py's client.
    """

    def __init__(self, settings: Settings) -> None:
        self.redis = open_store(settings, single=True)
        self._pool = self.redis.connection_pool

    async def ask(self, *words: Word) -> Any:
        """As ``Connection.ask``."""
        connection = await self._pool.get_connection()
        try:
            await connection.send_command(*words)
            return await connection.read_response()
        finally:
            await self._pool.release(connection)

    async def close(self) -> None:
        """Close it."""
        await self.redis.aclose()


class _Line(asyncio.Protocol):
    """One connection that was made, until it is lost. ``lost`` says why it was."""

    def __init__(self, connection: OpenedConnection, answer_seconds: float) -> None:
        self.lost: Exception | None = None
        self._connection = connection
        self._transport, self._reader = connection.transport, connection.reader
        self._answer_seconds = answer_seconds
        self._waiting: deque[asyncio.Future[Any]] = deque()
        self._unsent: list[bytes] = []
        self._loop = asyncio.get_running_loop()
        self._silent_since = self._loop.time()
        self._transport.set_protocol(self)
        self._looking = self._loop.call_later(answer_seconds, self._look)

    @property
    def usable(self) -> bool:
        """True if it takes commands: it is not lost, nor of a loop that ended (a program may run one after another)."""
        return self.lost is None and self._loop is asyncio.get_running_loop()

    def ask(self, words: tuple[Word, ...]) -> asyncio.Future[Any]:
        """The reply to one command. It fails as ``Connection.ask``."""
        if self.lost is not None:
            raise self.lost
        packed = hiredis.pack_command(words)  # type: ignore[arg-type]  # its stub says: of one word
        if not self._waiting:
            self._silent_since = self._loop.time()
            self._transport.write(packed)  # nothing is on its way, and the server begins at once
        else:
            if not self._unsent:
                self._loop.call_soon(self._send)
            self._unsent.append(packed)
        future = self._loop.create_future()
        self._waiting.append(future)
        return future

    def _send(self) -> None:
        unsent, self._unsent = self._unsent, []
        if self.lost is None:
            self._transport.write(b"".join(unsent))

    def data_received(self, data: bytes) -> None:
        """Hand the replies to who waits for them, in the order of the commands."""
        self._silent_since = self._loop.time()
        self._reader.feed(data)
        while (reply := self._reader.gets()) is not NOT_YET:
            if isinstance(reply, hiredis.PushNotification):
                continue
            future = self._waiting.popleft()
            if not isinstance(reply, Exception):
                if not future.done():  # else the asking task was cancelled
                    future.set_result(reply)
                continue
            if not future.done():
                future.set_exception(reply)
            # A master no longer, or another's slot: the next connection goes to the master of then.
            if isinstance(reply, (ReadOnlyError, RedisConnectionError)):
                self.end(RedisConnectionError("the store is a master no longer"))
                return

    def connection_lost(self, exc: Exception | None) -> None:
        """The store closed the connection, or it broke."""
        self.end(exc if isinstance(exc, RedisError) else RedisConnectionError(str(exc or "the store hung up")))

    def _look(self) -> None:
        """End the line when the store was silent for too long; else look again when it may have been."""
        now = self._loop.time()
        silent_since = self._silent_since if self._waiting else now
        if now - silent_since >= self._answer_seconds:
            self.end(RedisTimeoutError("the store owes an answer"))
        else:
            self._looking = self._loop.call_at(silent_since + self._answer_seconds, self._look)

    def end(self, why: RedisError) -> None:
        """Give the connection up, and fail the commands in its line."""
        if self.lost is not None:
            return
        self.lost = why
        waiting, self._waiting = self._waiting, deque()
        for future in waiting:
            if not future.done():
                future.set_exception(why)
        if not self._loop.is_closed():
            self._looking.cancel()
            self._connection.close()


class Listener(Protocol):
    """The callback of a subscription, in its loop."""

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

    def __init__(self, connection: OpenedConnection, listener: Listener) -> None:
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
        """True if it takes commands: it has not ended, nor has its loop (a program may run one after another)."""
        return not self._ended and self._loop is asyncio.get_running_loop()

    def subscribe(self, channel: bytes) -> None:
        """Listen to a channel, once that is confirmed."""
        self._unconfirmed[channel] += 1
        self._transport.write(hiredis.pack_command((b"SUBSCRIBE", channel)))  # type: ignore[arg-type]

    def unsubscribe(self, channel: bytes) -> None:
        """Listen to it no more."""
        self._transport.write(hiredis.pack_command((b"UNSUBSCRIBE", channel)))  # type: ignore[arg-type]

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
