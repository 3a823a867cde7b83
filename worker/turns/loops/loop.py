"""The event loop of a worker process, in a separate thread."""

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

#: A loop that did not look around for this long held up every turn of its process, in seconds.
BLOCKED_SECONDS = 0.05
#: Between two log lines about that, in seconds.
_SAY_SECONDS = 10.0
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
        self._new: list[Callable[[], Coroutine[Any, Any, None]]] = []
        self._work: set[asyncio.Task[Any]] = set()
        self._open = 0
        self._lock = threading.Lock()
        self._idle = threading.Event()
        self._idle.set()
        self._thread = threading.Thread(target=self._run, name="loop", daemon=True)
        self._blocks = Rounds(BLOCKED_SECONDS)
        self._said_at = float("-inf")
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
            alone = not self._new
            self._new.append(make)
        if alone:  # else the loop is woken already, and has not looked yet
            self._running.call_soon_threadsafe(self._begin)

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
        """End the loop; its rest is cancelled."""
        if self._thread.is_alive():
            self._running.call_soon_threadsafe(self._ending.set)
            self._thread.join()

    @property
    def _running(self) -> asyncio.AbstractEventLoop:
        assert self._loop is not None, "the loop was not started"  # noqa: S101 - a fact for the type checker
        return self._loop

    def _begin(self) -> None:
        with self._lock:
            new, self._new = self._new, []
        for make in new:
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

    @property
    def worst_block(self) -> float:
        """The longest time of the last minute that the loop did not look around, in seconds; 0 below the limit."""
        return self._blocks.worst(time.monotonic())

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(_Timed(self._blocked))) as runner:
            runner.run(self._serve())

    def _blocked(self, seconds: float) -> None:
        now = time.monotonic()
        self._blocks.add(now, seconds)
        if now - self._said_at >= _SAY_SECONDS:
            self._said_at = now
            log.warning("loop.blocked", seconds=round(seconds, 3), turns=len(self._work))

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


class _Timed(selectors.DefaultSelector):
    """A selector that measures how long the loop stays away from it: ``on_long`` is called with the seconds."""

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
