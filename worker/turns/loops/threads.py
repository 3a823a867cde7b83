"""The threads of a worker process: for work that blocks, so that the event loop never does."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from threading import Thread
from typing import Any, ParamSpec

from worker.turns.loops.loop import T

P = ParamSpec("P")

#: Folders are prepared and published by this many at once.
_FILES = 4
#: Sessions are brought and sent by this many at once.
_TRANSFERS = 8


class Threads:
    """The pools. A thread is made when it is first needed, and kept."""

    def __init__(self, checks: int) -> None:
        self._runs = ThreadPoolExecutor(10_000, "run")  # slots decide how many are used
        self._checks = ThreadPoolExecutor(max(1, checks), "check")
        self._files = Short(_FILES, "files")
        self._transfers = ThreadPoolExecutor(_TRANSFERS, "transfer")
        self._loop: asyncio.AbstractEventLoop | None = None

    async def runs(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return what takes as long as an agent."""
        return await self._in(self._runs, work, *args, **kwargs)

    async def checks(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Judging: here, or in one of the children that all these threads share."""
        return await self._in(self._checks, work, *args, **kwargs)

    async def files(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Short work with files, or with the broker."""
        self._loop = asyncio.get_running_loop()
        done: T = await self._files.do(functools.partial(work, *args, **kwargs))
        return done

    async def transfers(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """What waits for an object store."""
        return await self._in(self._transfers, work, *args, **kwargs)

    async def _in(self, pool: ThreadPoolExecutor, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        self._loop = asyncio.get_running_loop()
        context = contextvars.copy_context()  # log lines name the turn
        return await self._loop.run_in_executor(pool, functools.partial(context.run, work, *args, **kwargs))

    def asked(self, work: Coroutine[Any, Any, T], seconds: float | None = None) -> T:
        """The result of a coroutine, for work in one of these threads: the loop that gave the work does it.

        Raises ``TimeoutError``: not within so many ``seconds``.
        """
        assert self._loop is not None, "asked outside of any work"  # noqa: S101 - a fact for the type checker
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(seconds)

    def close(self) -> None:
        """Take no more work. What is at work goes on."""
        for pool in (self._runs, self._checks, self._files, self._transfers):
            pool.shutdown(wait=False)


#: Where a result goes; what makes it.
_Work = tuple["asyncio.Future[Any]", Callable[[], Any]]
#: Where a result goes; the result, or the error.
_Done = tuple["asyncio.Future[Any]", object, BaseException | None]


class Short:
    """Threads for work that takes less time than ``ThreadPoolExecutor`` takes to hand it over. For one loop.

    ``python -m tests.lab.bench.threads`` shows both: 5 us of processor a call, and 15 to 40, with 20 or more in flight.

    They are daemons: the process may end in the middle of such work, as it may die there.
    """

    def __init__(self, most: int, name: str) -> None:
        self._most, self._name = most, name
        self._queue: SimpleQueue[_Work | None] = SimpleQueue()
        self._done: deque[_Done] = deque()
        self._woken = False
        self._threads = self._busy = 0

    async def do(self, work: Callable[[], Any]) -> Any:
        """The work's result, or what it raises."""
        future = asyncio.get_running_loop().create_future()
        self._busy += 1
        if self._threads < min(self._busy, self._most):
            self._threads += 1
            Thread(target=self._serve, name=f"{self._name}_{self._threads}", daemon=True).start()
        self._queue.put((future, functools.partial(contextvars.copy_context().run, work)))
        return await future

    def shutdown(self, *, wait: bool) -> None:
        """End the threads when nothing is left to do, as ``ThreadPoolExecutor`` does. Nobody can ``wait`` for it."""
        for _ in range(self._threads):
            self._queue.put(None)

    def _serve(self) -> None:
        while order := self._queue.get():
            future, work = order
            try:
                result, error = work(), None
            except BaseException as raised:
                result, error = None, raised
            self._done.append((future, result, error))
            if not self._woken:  # else the loop has still to look, and finds this too
                self._woken = True
                with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
                    future.get_loop().call_soon_threadsafe(self._end_all)
            del order, future, work, result, error  # not to be kept until the next work comes

    def _end_all(self) -> None:
        self._woken = False  # first: what ends from here on wakes the loop again
        while self._done:
            future, result, error = self._done.popleft()
            self._busy -= 1
            if future.cancelled():
                continue
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)
