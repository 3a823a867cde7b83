"""The loops and threads of a worker process. Its event loop has a separate thread: the main one is Celery's."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import selectors
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from threading import Thread
from typing import Any, ParamSpec, Protocol, TypeVar

import structlog
from redis.exceptions import RedisError

from api_client.contract.issues import StoreUnavailable

# The time that a process takes for quick work, such as renewing its leases: noticed before it costs a turn.

#: A round is slow when it takes this part of a lease: at the default lease of 6 s, one second.
SLOW_SHARE = 1 / 6
#: The worst round of so long is shown, in seconds.
_SHOWN_SECONDS = 60.0


class Rounds:
    """The rounds of one process, each from when it was to begin to when it had ended, in seconds.

    ``limit``: a longer one is slow. For any thread.
    """

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._rounds: deque[tuple[float, float]] = deque()
        self._lock = threading.Lock()
        self.slow = False

    def add(self, ended_at: float, seconds: float) -> bool:
        """Note a round; True when with this one the rounds began to be slow. ``ended_at`` by ``time.monotonic()``."""
        with self._lock:
            self._rounds.append((ended_at, seconds))
            self._forget(ended_at)
        was, self.slow = self.slow, seconds > self._limit
        return self.slow and not was

    def worst(self, now: float) -> float:
        """The longest round of the last minute; 0 when there was none."""
        with self._lock:
            self._forget(now)
            return max((seconds for _, seconds in self._rounds), default=0.0)

    def _forget(self, now: float) -> None:
        while self._rounds and self._rounds[0][0] < now - _SHOWN_SECONDS:
            self._rounds.popleft()


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


# The second event loop of a worker process: for what looks at the store again and again, and carries out no turn.

#: A process that ends waits so long for the looks that are under way, and for those who leave, in seconds.
_LEAVE_SECONDS = 2.0


class Watcher(Protocol):
    """All that is to be looked at. Its connections belong to the loop.

    Attributes:
        name: what log lines call it. seconds: between two looks; 0: there is nothing to look at.
    """

    name: str
    seconds: float

    async def poll(self) -> None:
        """Look once. May raise ``RedisError``, ``StoreUnavailable``."""

    async def leave(self) -> None:
        """Tell the store that this process ends. May raise ``RedisError``."""


class Watch:
    """The loop. No fault ends a watcher: what it does would stay undone."""

    def __init__(self, watchers: Sequence[Watcher] = ()) -> None:
        self._watchers = [each for each in watchers if each.seconds]
        self._closing = threading.Event()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="watch", daemon=True)

    def start(self) -> None:
        """Start the thread; returns when the loop turns."""
        self._thread.start()
        self._ready.wait()

    def add(self, watcher: Watcher) -> None:
        """Look here too, at once and from now on. For any thread, once it is started."""
        self._loop.call_soon_threadsafe(self._begin, watcher, 0.0)

    def close(self) -> None:
        """Stop after the looks that are under way; those who watch leave, if the store answers soon."""
        if self._thread.is_alive():
            self._closing.set()
            self._loop.call_soon_threadsafe(self._ending.set)
            self._thread.join(3 * _LEAVE_SECONDS)

    async def _serve(self) -> None:
        self._loop, self._ending = asyncio.get_running_loop(), asyncio.Event()
        self._tasks: dict[asyncio.Task[None], Watcher] = {}
        for each in self._watchers:
            self._begin(each, each.seconds)
        self._ready.set()
        await self._ending.wait()
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=_LEAVE_SECONDS)
            for task in late:
                task.cancel()
            leaving = [asyncio.ensure_future(_left(each)) for each in self._tasks.values()]
            await asyncio.wait(leaving, timeout=_LEAVE_SECONDS)

    def _begin(self, watcher: Watcher, wait: float) -> None:
        self._tasks[asyncio.ensure_future(self._watch(watcher, wait))] = watcher

    async def _watch(self, watcher: Watcher, wait: float) -> None:
        away = False
        while not await self._ended_within(wait):
            wait = watcher.seconds
            try:
                await watcher.poll()
                if away:
                    away = False
                    log.info("store.back", thread=watcher.name)
            except (RedisError, StoreUnavailable) as error:
                if not away:  # once, however long it lasts
                    away = True
                    log.warning("store.away", thread=watcher.name, error=type(error).__name__)
            except Exception:
                if not self._closing.is_set():
                    log.exception("poll.failed", thread=watcher.name)

    async def _ended_within(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await self._ending.wait()
        except TimeoutError:
            return self._closing.is_set()
        return True


async def _left(watcher: Watcher) -> None:
    try:
        await watcher.leave()
    except (RedisError, StoreUnavailable) as error:
        log.info("watch.not_left", thread=watcher.name, error=type(error).__name__)


# The threads of a worker process: for work that blocks, so that the event loop never does.

P = ParamSpec("P")

#: Folders are prepared and published by this many at once.
_FILES = 4
#: Sessions are brought and sent by this many at once.
_TRANSFERS = 8


class Threads:
    """The pools. A thread is made when it is first needed, and kept."""

    def __init__(self, runs: int, checks: int) -> None:
        self._runs = ThreadPoolExecutor(max(1, runs), "run")
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

    ``python -m tests.bench.threads`` shows both: 5 us of processor a call, and 15 to 40, with 20 or more in flight.

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
