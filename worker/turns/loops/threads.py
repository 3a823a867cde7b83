"""Thread pools of a worker process for blocking work, which must stay out of the event loop."""

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

#: Folders prepared and published at once.
_FILES = 4
#: Sessions loaded and saved at once.
_TRANSFERS = 8


class Threads:
    """Runs blocking work outside the event loop, in thread pools for agents, validation, files and transfers."""

    def __init__(self, checks: int) -> None:
        self._runs = ThreadPoolExecutor(10_000, "run")  # slots limit the number in use
        self._checks = ThreadPoolExecutor(max(1, checks), "check")
        self._files = ShortWorkPool(_FILES, "files")
        self._transfers = ThreadPoolExecutor(_TRANSFERS, "transfer")
        self._loop: asyncio.AbstractEventLoop | None = None

    async def do_run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call ``work`` in a thread for agent runs, which may take a long time, and return the result."""
        return await self._run_in_pool(self._runs, work, *args, **kwargs)

    async def do_check(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call ``work`` in a thread for validation, and return the result."""
        return await self._run_in_pool(self._checks, work, *args, **kwargs)

    async def do_file_work(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call ``work`` in a thread for short file or broker operations, and return the result."""
        self._loop = asyncio.get_running_loop()
        done: T = await self._files.run_work(functools.partial(work, *args, **kwargs))
        return done

    async def do_transfer(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call ``work`` in a thread for transfers to or from an object store, and return the result."""
        return await self._run_in_pool(self._transfers, work, *args, **kwargs)

    async def _run_in_pool(
        self, pool: ThreadPoolExecutor, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        self._loop = asyncio.get_running_loop()
        context = contextvars.copy_context()  # log lines name the turn
        return await self._loop.run_in_executor(pool, functools.partial(context.run, work, *args, **kwargs))

    def run_in_loop(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the event loop from a thread of a pool, and return the result."""
        assert self._loop is not None, "asked outside of any work"  # noqa: S101 - a fact for the type checker
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def close(self) -> None:
        """Accept no more work. Work in progress continues."""
        for pool in (self._runs, self._checks, self._files, self._transfers):
            pool.shutdown(wait=False)


_Work = tuple["asyncio.Future[Any]", Callable[[], Any]]
_Done = tuple["asyncio.Future[Any]", object, BaseException | None]


class ShortWorkPool:
    """A thread pool for calls so short that the overhead of ``ThreadPoolExecutor`` would dominate.

    The threads are daemons, so the process may exit in the middle of their work.
    """

    def __init__(self, most: int, name: str) -> None:
        self._most, self._name = most, name
        self._queue: SimpleQueue[_Work | None] = SimpleQueue()
        self._done: deque[_Done] = deque()
        self._woken = False
        self._threads = self._busy = 0

    async def run_work(self, work: Callable[[], Any]) -> Any:
        """Call ``work`` in a thread, and return the result or raise the error."""
        future = asyncio.get_running_loop().create_future()
        self._busy += 1
        if self._threads < min(self._busy, self._most):
            self._threads += 1
            Thread(target=self._serve_queue, name=f"{self._name}_{self._threads}", daemon=True).start()
        self._queue.put((future, functools.partial(contextvars.copy_context().run, work)))
        return await future

    def shutdown(self, *, wait: bool) -> None:
        """End the threads after the queued work. The argument ``wait`` is ignored."""
        for _ in range(self._threads):
            self._queue.put(None)

    def _serve_queue(self) -> None:
        while order := self._queue.get():
            future, work = order
            try:
                result, error = work(), None
            except BaseException as raised:
                result, error = None, raised
            self._done.append((future, result, error))
            if not self._woken:  # otherwise the loop will still find this result
                self._woken = True
                with contextlib.suppress(RuntimeError):  # the loop is closed, so no caller waits
                    future.get_loop().call_soon_threadsafe(self._deliver_results)
            del order, future, work, result, error  # free the references before waiting

    def _deliver_results(self) -> None:
        self._woken = False  # reset first, so that later results wake the loop again
        while self._done:
            future, result, error = self._done.popleft()
            self._busy -= 1
            if future.cancelled():
                continue
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)
