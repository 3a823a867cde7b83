"""One connection to the store for a whole event loop: commands that are asked for at the same time leave together.

Nobody waits for a connection, and none is made per command: each command gets the next place in the line, and the
replies come in that order. A connection that is lost, or owes an answer for too long, fails the commands in its line;
the next command makes another one. So it is for commands that may be sent twice, as all of the ledger's may.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections import deque
from typing import Any

import redis.asyncio
from redis.asyncio.sentinel import Sentinel
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from api_client.contract.settings import Settings, require_store
from api_client.contract.values.sentinels import Sentinels

Word = str | bytes | int

_CONNECT_SECONDS = 2.0
#: How often it is looked whether the oldest command waits for too long, in seconds.
_LOOK_SECONDS = 0.5


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
            await self._line.end(RedisConnectionError("closed"))

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


class _Line:
    """One connection that was made, until it is lost. ``lost`` says why it was."""

    def __init__(self, connection: Any, answer_seconds: float) -> None:
        self.lost: Exception | None = None
        self._connection = connection
        self._answer_seconds = answer_seconds
        self._waiting: deque[tuple[asyncio.Future[Any], float]] = deque()
        self._unsent: list[bytes] = []
        self._more = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._tasks = [self._loop.create_task(work) for work in (self._read(), self._write(), self._look())]

    async def ask(self, words: tuple[Word, ...]) -> Any:
        """The reply to one command. Raises as ``Connection.ask``."""
        future = self._loop.create_future()
        self._unsent += self._connection.pack_command(*words)
        self._waiting.append((future, time.monotonic()))
        self._more.set()
        return await future

    async def _write(self) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            while True:
                await self._more.wait()
                self._more.clear()
                packed, self._unsent = self._unsent, []
                try:
                    await self._connection.send_packed_command(packed, check_health=False)
                except (RedisError, OSError) as error:
                    await self.end(_as_lost(error))
                    return

    async def _read(self) -> None:
        while True:
            try:
                reply = await self._connection.read_response(disable_decoding=True, timeout=math.inf)
            except ResponseError as error:
                reply = error
            except (RedisError, OSError) as error:
                await self.end(_as_lost(error))
                return
            future, _ = self._waiting.popleft()
            if future.done():
                continue  # the asking task was cancelled
            if isinstance(reply, Exception):
                future.set_exception(reply)
            else:
                future.set_result(reply)

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            if self._waiting and time.monotonic() - self._waiting[0][1] > self._answer_seconds:
                await self.end(RedisTimeoutError("the store owes an answer"))
                return

    async def end(self, why: Exception) -> None:
        """Give the connection up, and fail the commands in its line."""
        if self.lost is not None:
            return
        self.lost = why
        for task in self._tasks:
            if task is not asyncio.current_task():
                task.cancel()
        waiting, self._waiting = self._waiting, deque()
        for future, _ in waiting:
            if not future.done():
                future.set_exception(why)
        with contextlib.suppress(RedisError, OSError):
            await self._connection.disconnect(nowait=True)


def _as_lost(error: Exception) -> RedisError:
    return error if isinstance(error, RedisError) else RedisConnectionError(str(error))


def _pool_of(settings: Settings) -> Any:
    """A pool that makes connections to the store's master; it keeps none.

    Raises:
        SettingsError: no store is set.
    """
    options: dict[str, Any] = {
        "socket_connect_timeout": _CONNECT_SECONDS,
        "retry": redis.asyncio.retry.Retry(NoBackoff(), 0),
    }
    if sentinels := Sentinels.parse(require_store(settings).store_url):
        asked: Any = Sentinel(list(sentinels.nodes), **options)  # type: ignore[no-untyped-call]
        password = sentinels.password or None
        return asked.master_for(sentinels.master, db=sentinels.db, password=password, **options).connection_pool
    return redis.asyncio.ConnectionPool.from_url(settings.redis_url, **options)
