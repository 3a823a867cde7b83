"""A pipelined connection to the store for an event loop.

A lost or silent connection fails all waiting commands, and the next command opens another connection; so commands must
be safe to send twice. Commands that block (WAIT) or return megabytes use other connections.
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
    """A connection to the store that all coroutines of an event loop share, with automatic reconnection.

    ``connect_seconds`` limits each step of connecting, ``answer_seconds`` the store's silence while a reply is due.
    """

    def __init__(self, settings: Settings, *, connect_seconds: float = 2.0, answer_seconds: float = 5.0) -> None:
        opened = open_store(settings, connect_seconds=connect_seconds, answer_seconds=connect_seconds)
        self._pool: Any = opened.connection_pool  # makes connections and keeps none
        self._answer_seconds = answer_seconds
        self._line: _Pipeline | None = None
        self._opening: asyncio.Task[_Pipeline] | None = None

    def send_command(self, *words: Word) -> Awaitable[Any]:
        """Send one command to the store and return an awaitable for its reply.

        Raises ``RedisError`` if the store does not answer, or answers with an error.
        """
        line = self._line
        return line.send_command(words) if line and line.usable else self._send_on_new(words)

    async def _send_on_new(self, words: tuple[Word, ...]) -> Any:
        return await (await self._shared_pipeline()).send_command(words)

    async def open_another(self) -> OpenedConnection:
        """Open another connection to the same store, for example for a subscription.

        Raises ``RedisError`` if the store does not answer.
        """
        made = self._pool.make_connection()
        try:
            await made.connect()
        except OSError as error:
            raise RedisConnectionError(str(error)) from error
        return OpenedConnection(made)

    async def close(self) -> None:
        """Close the connection. Commands that are waiting for a reply fail."""
        if self._opening and not self._opening.done():
            await asyncio.wait([self._opening])
        if self._line:
            self._line.close_failed(RedisConnectionError("closed"))

    async def _shared_pipeline(self) -> _Pipeline:
        """Open a connection on behalf of all concurrent callers. Cancelling one caller does not affect the others."""
        if self._opening is None or self._opening.done():
            self._opening = asyncio.create_task(self._open_pipeline(), name="store connection")
            # Callers that were cancelled no longer ask for its error.
            self._opening.add_done_callback(lambda opening: opening.cancelled() or opening.exception())
        return await asyncio.shield(self._opening)

    async def _open_pipeline(self) -> _Pipeline:
        self._line = _Pipeline(await self.open_another(), self._answer_seconds)
        return self._line


class SingleConnection(Connection):
    """A store connection that sends one command at a time, for programs that poll.

    ``redis`` is the same connection as a redis-py client.
    """

    def __init__(self, settings: Settings) -> None:
        self.redis = open_store(settings, single=True)
        self._pool = self.redis.connection_pool

    async def send_command(self, *words: Word) -> Any:
        connection = await self._pool.get_connection()
        try:
            await connection.send_command(*words)
            return await connection.read_response()
        finally:
            await self._pool.release(connection)

    async def close(self) -> None:
        await self.redis.aclose()


class _Pipeline(asyncio.Protocol):
    """An open connection that pipelines commands. ``lost`` is the error that ended it, or None."""

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
        self._looking = self._loop.call_later(answer_seconds, self._check_silence)

    @property
    def usable(self) -> bool:
        return self.lost is None and self._loop is asyncio.get_running_loop()

    def send_command(self, words: tuple[Word, ...]) -> asyncio.Future[Any]:
        """Send a command and return a future for its reply. Raises the error that closed the connection."""
        if self.lost is not None:
            raise self.lost
        packed = hiredis.pack_command(words)  # type: ignore[arg-type]  # the stub allows a single word only
        if not self._waiting:
            self._silent_since = self._loop.time()
            self._transport.write(packed)  # nothing is in flight, so the server starts at once
        else:
            if not self._unsent:
                self._loop.call_soon(self._flush_unsent)
            self._unsent.append(packed)
        future = self._loop.create_future()
        self._waiting.append(future)
        return future

    def _flush_unsent(self) -> None:
        unsent, self._unsent = self._unsent, []
        if self.lost is None:
            self._transport.write(b"".join(unsent))

    def data_received(self, data: bytes) -> None:
        self._silent_since = self._loop.time()
        self._reader.feed(data)
        while (reply := self._reader.gets()) is not NOT_YET:
            if isinstance(reply, hiredis.PushNotification):
                continue
            future = self._waiting.popleft()
            if not isinstance(reply, Exception):
                if not future.done():  # otherwise the caller was cancelled
                    future.set_result(reply)
                continue
            if not future.done():
                future.set_exception(reply)
            # The server is no master any more or the slot moved; the next connection goes to the current master.
            if isinstance(reply, (ReadOnlyError, RedisConnectionError)):
                self.close_failed(RedisConnectionError("the store is a master no longer"))
                return

    def connection_lost(self, exc: Exception | None) -> None:
        self.close_failed(exc if isinstance(exc, RedisError) else RedisConnectionError(str(exc or "the store hung up")))

    def _check_silence(self) -> None:
        now = self._loop.time()
        silent_since = self._silent_since if self._waiting else now
        if now - silent_since >= self._answer_seconds:
            self.close_failed(RedisTimeoutError("the store owes an answer"))
        else:
            self._looking = self._loop.call_at(silent_since + self._answer_seconds, self._check_silence)

    def close_failed(self, why: RedisError) -> None:
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
    """Receives the messages of a subscription. Methods are called in the subscription's event loop."""

    def on_subscribed(self, channel: bytes) -> None:
        """Handle the confirmation of a subscription. From now on, no message of the channel is missed."""

    def on_message(self, channel: bytes, data: bytes) -> None:
        """Handle a message that arrived on a channel."""

    def on_lost(self, error: Exception) -> None:
        """Handle the loss of the connection with all its channels. Called at most once, and never after ``end``."""


class Subscription(asyncio.Protocol):
    """A pub/sub connection to the store that passes messages to a listener until it is lost or ended.

    ``heard_at`` is the loop's time at which the store last sent data.
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
        """Return True if the subscription is open and belongs to the running event loop."""
        return not self._ended and self._loop is asyncio.get_running_loop()

    def subscribe(self, channel: bytes) -> None:
        """Subscribe to a channel. ``Listener.on_subscribed`` is called when the store confirms the subscription."""
        self._unconfirmed[channel] += 1
        self._transport.write(hiredis.pack_command((b"SUBSCRIBE", channel)))  # type: ignore[arg-type]

    def unsubscribe(self, channel: bytes) -> None:
        self._transport.write(hiredis.pack_command((b"UNSUBSCRIBE", channel)))  # type: ignore[arg-type]

    def data_received(self, data: bytes) -> None:
        """Parse received data and pass messages and confirmations to the listener."""
        self.heard_at = self._loop.time()
        self._reader.feed(data)
        while (said := self._reader.gets()) is not NOT_YET and not self._ended:
            if isinstance(said, Exception):
                self._report_loss(said)
                return
            self._handle_message(said)

    def _handle_message(self, said: Any) -> None:
        if said[0] == b"message":
            self._listener.on_message(said[1], said[2])
        elif said[0] == b"subscribe":
            self._unconfirmed[said[1]] -= 1
            if not self._unconfirmed[said[1]]:
                del self._unconfirmed[said[1]]
                self._listener.on_subscribed(said[1])

    def connection_lost(self, exc: Exception | None) -> None:
        self._report_loss(exc if isinstance(exc, RedisError) else RedisConnectionError(str(exc or "the store hung up")))

    def _report_loss(self, error: Exception) -> None:
        if not self._ended:
            self.end()
            self._listener.on_lost(error)

    def end(self) -> None:
        """Close the connection without informing the listener."""
        if not self._ended:
            self._ended = True
            if not self._loop.is_closed():
                self._connection.close()
