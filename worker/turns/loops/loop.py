"""The event loop of a worker process, which runs in its own thread."""

from __future__ import annotations

import asyncio
import selectors
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import structlog

from worker.turns.loops.rounds import Rounds

log = structlog.get_logger()

T = TypeVar("T")

#: Blocking the loop this long delays every turn of the process, in seconds.
BLOCKED_SECONDS = 0.05
#: Seconds between two warnings about a blocked loop.
_SAY_SECONDS = 10.0
#: Seconds between two signs of life of the loop.
_TURN_SECONDS = 0.5


class Loop:
    """Runs coroutines in an event loop in its own thread, and tracks the work in progress.

    The loop calls ``on_turn`` every half second; a missing call means that the loop is stuck.
    """

    def __init__(self, on_turn: Callable[[], object] = lambda: None) -> None:
        self._on_turn = on_turn
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ready = threading.Event()
        self._new: list[Callable[[], Coroutine[Any, Any, None]]] = []
        self._work: set[asyncio.Task[Any]] = set()
        self._open = 0
        self._lock = threading.Lock()
        self._idle = threading.Event()
        self._idle.set()
        self._thread = threading.Thread(target=self._run_loop, name="loop", daemon=True)
        self._blocks = Rounds(BLOCKED_SECONDS)
        self._said_at = float("-inf")
        #: When the loop was last alive, as a ``time.monotonic()`` value.
        self.turned_at = 0.0

    def start(self) -> None:
        """Start the loop's thread, and wait until the loop runs."""
        self._thread.start()
        self._ready.wait()

    def start_work(self, make: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Start a coroutine in the loop, from any thread. The coroutine must handle its own errors."""
        with self._lock:
            self._open += 1
            self._idle.clear()
            alone = not self._new
            self._new.append(make)
        if alone:  # otherwise the loop is already woken
            self._running.call_soon_threadsafe(self._start_new)

    def call_later(self, seconds: float, call: Callable[[], object]) -> None:
        """Call a function in the loop after ``seconds``. May be used from any thread."""
        self._running.call_soon_threadsafe(self._running.call_later, seconds, call)

    def run_and_wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the loop from another thread, and wait for its result."""
        return asyncio.run_coroutine_threadsafe(work, self._running).result()

    def wait_idle(self, seconds: float | None = None) -> bool:
        """Wait until all started coroutines have ended. Return False if they take longer than ``seconds``."""
        return self._idle.wait(seconds)

    def close(self) -> None:
        """Stop the loop and its thread. Cancel coroutines that are still running."""
        if self._thread.is_alive():
            self._running.call_soon_threadsafe(self._ending.set)
            self._thread.join()

    @property
    def _running(self) -> asyncio.AbstractEventLoop:
        assert self._loop is not None, "the loop was not started"  # noqa: S101 - a fact for the type checker
        return self._loop

    def _start_new(self) -> None:
        with self._lock:
            new, self._new = self._new, []
        for make in new:
            task = self._running.create_task(make())
            self._work.add(task)
            task.add_done_callback(self._note_end)

    def _note_end(self, task: asyncio.Task[Any]) -> None:
        self._work.discard(task)
        if not task.cancelled() and (error := task.exception()):
            log.error("loop.work_failed", exc_info=error)
        with self._lock:
            self._open -= 1
            if not self._open:
                self._idle.set()

    @property
    def worst_block(self) -> float:
        """Return the longest time in seconds that the loop was blocked in the last minute. Short blocks count as 0."""
        return self._blocks.find_worst(time.monotonic())

    def _run_loop(self) -> None:
        with asyncio.Runner(
            loop_factory=lambda: asyncio.SelectorEventLoop(_TimedSelector(self._report_block))
        ) as runner:
            runner.run(self._run_until_closed())

    def _report_block(self, seconds: float) -> None:
        now = time.monotonic()
        self._blocks.record_round(now, seconds)
        if now - self._said_at >= _SAY_SECONDS:
            self._said_at = now
            log.warning("loop.blocked", seconds=round(seconds, 3), turns=len(self._work))

    async def _run_until_closed(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._ending = asyncio.Event()
        turning = asyncio.create_task(self._show_life())
        self._ready.set()
        await self._ending.wait()
        turning.cancel()

    async def _show_life(self) -> None:
        while True:
            self.turned_at = time.monotonic()
            self._on_turn()
            await asyncio.sleep(_TURN_SECONDS)


class _TimedSelector(selectors.DefaultSelector):
    """A selector that calls ``on_long`` with a duration in seconds whenever the event loop was busy for too long."""

    def __init__(self, on_long: Callable[[float], object]) -> None:
        super().__init__()
        self._on_long = on_long
        self._left_at = time.monotonic()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        away = time.monotonic() - self._left_at
        if away >= BLOCKED_SECONDS:
            self._on_long(away)
        found = super().select(timeout)
        self._left_at = time.monotonic()
        return found
