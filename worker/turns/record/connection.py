"""One connection to the store for a whole event loop: commands that are asked for at the same time leave together.

Nobody waits for a connection, and none is made per command: each command gets the next place in the line, and the
replies come in that order. A connection that is lost, or owes an answer for too long, fails the commands in its line;
the next command makes another one. So it is for commands that may be sent twice, as all of the ledger's may.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import Any

import hiredis
import redis.asyncio
from redis.asyncio.sentinel import Sentinel
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import InvalidResponse, RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from api_client.contract.settings import Settings, require_store
from api_client.contract.values.sentinels import Sentinels
from worker.turns.record.store import QUICK_SIGN_IN

Word = str | bytes | int

_CONNECT_SECONDS = 2.0
#: How often it is looked whether the oldest command waits for too long, in seconds.
_LOOK_SECONDS = 0.5
#: What the reader says when a reply is not whole yet.
_NOT_YET = object()


class Connection:
    """The store, as the coroutines of one loop ask it. Used by that loop alone."""

    def __init__(self, settings: Settings, *, answer_seconds: float = 5.0) -> None:
        self._pool = _pool_of(settings)
        self._answer_seconds = answer_seconds
        self._line: _Line | None = None
        self._opening = asyncio.Lock()

    async def ask(self, *words: Word) -> Any:
        """The reply to one command.

        Raises:
            RedisError: the store does not answer, or answers with an error.
        """
        line = self._line
        if line is None or line.lost is not None:
            line = await self._opened()
        return await line.ask(words)

    async def close(self) -> None:
        """Close the connection; what still waits for an answer fails."""
        if self._line:
            self._line.end(RedisConnectionError("closed"))

    async def _opened(self) -> _Line:
        async with self._opening:
            if self._line is None or self._line.lost is not None:
                made = self._pool.make_connection()
                try:
                    async with asyncio.timeout(_CONNECT_SECONDS):
                        await made.connect()
                except TimeoutError as error:
                    raise RedisTimeoutError("the store takes no connection") from error
                except OSError as error:
                    raise RedisConnectionError(str(error)) from error
                self._line = _Line(made, self._answer_seconds)
            return self._line


class _Line(asyncio.Protocol):
    """One connection that was made, until it is lost. ``lost`` says why it was.

    redis-py connects and signs in; then its transport is ours, because its own reading and packing costs a turn more
    than all else that is done with the store (tests/integration/test_connection.py names what is used of it).
    """

    def __init__(self, connection: Any, answer_seconds: float) -> None:
        self.lost: Exception | None = None
        self._connection = connection  # its writer would close the transport when it is collected
        self._transport: asyncio.WriteTransport = connection._writer.transport  # noqa: SLF001
        error_of = connection._parser.parse_error  # noqa: SLF001
        self._reader = hiredis.Reader(protocolError=InvalidResponse, replyError=error_of, notEnoughData=_NOT_YET)
        self._answer_seconds = answer_seconds
        self._waiting: deque[tuple[asyncio.Future[Any], float]] = deque()
        self._unsent: list[bytes] = []
        self._loop = asyncio.get_running_loop()
        self._transport.set_protocol(self)
        self._looking = self._loop.call_later(_LOOK_SECONDS, self._look)

    def ask(self, words: tuple[Word, ...]) -> asyncio.Future[Any]:
        """The reply to one command. It fails as ``Connection.ask``."""
        packed = hiredis.pack_command(words)  # type: ignore[arg-type]  # its stub says: of one word
        if not self._unsent:
            self._loop.call_soon(self._send)
        self._unsent.append(packed)
        future = self._loop.create_future()
        self._waiting.append((future, time.monotonic()))
        return future

    def _send(self) -> None:
        unsent, self._unsent = self._unsent, []
        if self.lost is None:
            self._transport.write(b"".join(unsent))

    def data_received(self, data: bytes) -> None:
        """Hand the replies to who waits for them, in the order of the commands."""
        self._reader.feed(data)
        while (reply := self._reader.gets()) is not _NOT_YET:
            if isinstance(reply, hiredis.PushNotification):
                continue
            future, _ = self._waiting.popleft()
            if future.done():
                continue  # the asking task was cancelled
            if isinstance(reply, Exception):
                future.set_exception(reply)
            else:
                future.set_result(reply)

    def connection_lost(self, exc: Exception | None) -> None:
        """The store closed the connection, or it broke."""
        self.end(exc if isinstance(exc, RedisError) else RedisConnectionError(str(exc or "the store hung up")))

    def _look(self) -> None:
        if self._waiting and time.monotonic() - self._waiting[0][1] > self._answer_seconds:
            self.end(RedisTimeoutError("the store owes an answer"))
        else:
            self._looking = self._loop.call_later(_LOOK_SECONDS, self._look)

    def end(self, why: RedisError) -> None:
        """Give the connection up, and fail the commands in its line."""
        if self.lost is not None:
            return
        self.lost = why
        self._looking.cancel()
        self._transport.abort()
        waiting, self._waiting = self._waiting, deque()
        for future, _ in waiting:
            if not future.done():
                future.set_exception(why)


def _pool_of(settings: Settings) -> Any:
    """A pool that makes connections to the store's master; it keeps none.

    Raises:
        SettingsError: no store is set.
    """
    options: dict[str, Any] = {
        "socket_connect_timeout": _CONNECT_SECONDS,
        "retry": redis.asyncio.retry.Retry(NoBackoff(), 0),
        **QUICK_SIGN_IN,
    }
    if sentinels := Sentinels.parse(require_store(settings).store_url):
        asked: Any = Sentinel(list(sentinels.nodes), **options)  # type: ignore[no-untyped-call]
        password = sentinels.password or None
        return asked.master_for(sentinels.master, db=sentinels.db, password=password, **options).connection_pool
    return redis.asyncio.ConnectionPool.from_url(settings.redis_url, **options)
