"""The event loop of a worker process, in a separate thread: the main thread is the Celery worker's."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import structlog

log = structlog.get_logger()

T = TypeVar("T")

#: How often the loop shows that it turns, in seconds.
_TURN_SECONDS = 0.5


class Loop:
    """The loop, and the work that was begun in it.

    ``on_turn`` is called in the loop every half a second: when it is not, the loop is stuck.
    """

    def __init__(self, on_turn: Callable[[], object] = lambda: None) -> None:
        self._on_turn = on_turn
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ready = threading.Event()
        self._work: set[asyncio.Task[Any]] = set()
        self._open = 0
        self._lock = threading.Lock()
        self._idle = threading.Event()
        self._idle.set()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="loop", daemon=True)
        #: When it last turned, by ``time.monotonic()``.
        self.turned_at = 0.0

    def start(self) -> None:
        """Start the thread; returns when the loop turns."""
        self._thread.start()
        self._ready.wait()

    def begin(self, make: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Begin a piece of work, from any thread. It sees to its own errors."""
        with self._lock:
            self._open += 1
            self._idle.clear()
        self._running.call_soon_threadsafe(self._begin, make)

    def later(self, seconds: float, call: Callable[[], object]) -> None:
        """Call something in the loop after a while, from any thread."""
        self._running.call_soon_threadsafe(self._running.call_later, seconds, call)

    def result_of(self, work: Coroutine[Any, Any, T]) -> T:
        """Do a piece of work and wait for it, from another thread."""
        return asyncio.run_coroutine_threadsafe(work, self._running).result()

    def wait_idle(self, seconds: float | None = None) -> bool:
        """Wait until all work that was begun is done; False when it is not within ``seconds``."""
        return self._idle.wait(seconds)

    def close(self) -> None:
        """End the loop; what is left in it is cancelled."""
        if self._thread.is_alive():
            self._running.call_soon_threadsafe(self._ending.set)
            self._thread.join()

    @property
    def _running(self) -> asyncio.AbstractEventLoop:
        assert self._loop is not None, "the loop was not started"  # noqa: S101 - a fact for the type checker
        return self._loop

    def _begin(self, make: Callable[[], Coroutine[Any, Any, None]]) -> None:
        task = self._running.create_task(make())
        self._work.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._work.discard(task)
        if not task.cancelled() and (error := task.exception()):
            log.error("loop.work_failed", exc_info=error)
        with self._lock:
            self._open -= 1
            if not self._open:
                self._idle.set()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._ending = asyncio.Event()
        turning = asyncio.create_task(self._turn())
        self._ready.set()
        await self._ending.wait()
        turning.cancel()

    async def _turn(self) -> None:
        while True:
            self.turned_at = time.monotonic()
            self._on_turn()
            await asyncio.sleep(_TURN_SECONDS)
