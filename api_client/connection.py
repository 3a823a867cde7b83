"""One connection to the store for a whole event loop: commands that are asked for at the same time leave together.

Nobody waits for a connection, and none is made per command: each command gets the next place in the line, and the
replies come in that order. A connection that is lost, or owes an answer for too long, fails the commands in its line;
the next command makes another one. So it is for commands that may be sent twice, as those of the ledger and of a submit
may. What keeps a connection waiting (WAIT, SUBSCRIBE) or brings megabytes goes elsewhere: the line waits behind it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

import hiredis
import redis.asyncio
from redis.asyncio.sentinel import Sentinel
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import InvalidResponse, ReadOnlyError, RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.maint_notifications import MaintNotificationsConfig

from api_client.contract.commands import Word
from api_client.contract.settings import Settings, require_store
from api_client.contract.values.sentinels import Sentinels

#: Signing in takes one round trip instead of four: a link may be slow, and a lease not be kept until it is done.
QUICK_SIGN_IN: dict[str, Any] = {
    "driver_info": None,
    "maint_notifications_config": MaintNotificationsConfig(enabled=False),
}
#: What the reader says when a reply is not whole yet.
NOT_YET = object()


class Connection:
    """The store, as the coroutines of one loop ask it. Used by that loop alone.

    ``connect_seconds`` bounds each step of connecting and signing in, ``answer_seconds`` how long the store may be
    silent while it owes an answer.
    """

    def __init__(self, settings: Settings, *, connect_seconds: float = 2.0, answer_seconds: float = 5.0) -> None:
        self._pool = _pool_of(settings, connect_seconds)
        self._answer_seconds = answer_seconds
        self._line: _Line | None = None
        self._opening: asyncio.Task[_Line] | None = None

    async def ask(self, *words: Word) -> Any:
        """The reply to one command.

        Raises:
            RedisError: the store does not answer, or answers with an error.
        """
        line = self._line
        if line is None or not line.usable:
            line = await self._opened()
        return await line.ask(words)

    async def another(self) -> Opened:
        """Another connection to the same store, for its own purpose.

        Raises:
            RedisError: the store does not answer.
        """
        made = self._pool.make_connection()
        try:
            await made.connect()
        except OSError as error:
            raise RedisConnectionError(str(error)) from error
        return Opened(made)

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


class Opened:
    """A connection that redis-py made and signed in; its transport is ours.

    redis-py's own reading and packing costs a turn more than all else that is done with the store
    (tests/integration/test_connection.py names what is used of it).

    Attributes:
        transport: where commands are written. reader: makes replies of what is fed to it.
    """

    def __init__(self, connection: Any) -> None:
        self._connection = connection  # its writer would close the transport when it is collected
        self.transport: asyncio.WriteTransport = connection._writer.transport  # noqa: SLF001
        error_of = connection._parser.parse_error  # noqa: SLF001
        self.reader = hiredis.Reader(protocolError=InvalidResponse, replyError=error_of, notEnoughData=NOT_YET)

    def close(self) -> None:
        """Give it up at once."""
        self.transport.abort()
        self._connection._close()  # noqa: SLF001  # or it complains, when collected, that nobody closed it


class _Line(asyncio.Protocol):
    """One connection that was made, until it is lost. ``lost`` says why it was."""

    def __init__(self, connection: Opened, answer_seconds: float) -> None:
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
        """Whether it takes commands: it is not lost, nor of a loop that ended (a program may run one after another)."""
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
            if isinstance(reply, ReadOnlyError):  # a master no longer: the next connection goes to the one of now
                self.end(RedisConnectionError("the store became a replica"))
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


def _pool_of(settings: Settings, connect_seconds: float) -> Any:
    """A pool that makes connections to the store's master; it keeps none.

    Raises:
        SettingsError: no store is set.
    """
    options: dict[str, Any] = {
        "socket_connect_timeout": connect_seconds,
        "socket_timeout": connect_seconds,  # for signing in, and for what Sentinel is asked
        "retry": redis.asyncio.retry.Retry(NoBackoff(), 0),
        **QUICK_SIGN_IN,
    }
    if sentinels := Sentinels.parse(require_store(settings).store_url):
        asked: Any = Sentinel(list(sentinels.nodes), **options)  # type: ignore[no-untyped-call]
        password = sentinels.password or None
        return asked.master_for(sentinels.master, db=sentinels.db, password=password, **options).connection_pool
    return redis.asyncio.ConnectionPool.from_url(settings.redis_url, **options)
