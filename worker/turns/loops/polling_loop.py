"""The second event loop of a worker process: it polls the store periodically and carries out no turns."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Protocol

import structlog
from redis.exceptions import RedisError

from api_client.contract.errors import StoreUnavailable

log = structlog.get_logger()


#: Seconds that a closing process waits for running polls and farewells.
_LEAVE_SECONDS = 2.0


class Watcher(Protocol):
    """Interface for objects that a worker process polls regularly, such as the heartbeat or the reaper.

    ``seconds`` is the time until the next poll; 0 disables polling.
    """

    name: str
    seconds: float

    async def poll(self) -> None:
        """Do one round of this watcher's work. May raise ``RedisError`` or ``StoreUnavailable``."""

    async def leave(self) -> None:
        """Tell the store that this process is ending. May raise ``RedisError``."""


class PollingLoop:
    """Polls all watchers in an event loop in its own thread. Errors are logged, and polling continues."""

    def __init__(self, watchers: Sequence[Watcher] = ()) -> None:
        self._watchers = [each for each in watchers if each.seconds]
        self._closing = threading.Event()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="watch", daemon=True)

    def start(self) -> None:
        """Start the polling thread, and wait until its event loop runs."""
        self._thread.start()
        self._ready.wait()

    def add_watcher(self, watcher: Watcher) -> None:
        """Start polling another watcher immediately. May be called from any thread after ``start``."""
        self._loop.call_soon_threadsafe(self._start_watcher, watcher, 0.0)

    def close(self) -> None:
        """Stop polling once the polls in progress have finished, and call each watcher's ``leave`` in time."""
        if self._thread.is_alive():
            self._closing.set()
            self._loop.call_soon_threadsafe(self._ending.set)
            self._thread.join(3 * _LEAVE_SECONDS)

    async def _serve(self) -> None:
        self._loop, self._ending = asyncio.get_running_loop(), asyncio.Event()
        self._tasks: dict[asyncio.Task[None], Watcher] = {}
        for each in self._watchers:
            self._start_watcher(each, each.seconds)
        self._ready.set()
        await self._ending.wait()
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=_LEAVE_SECONDS)
            for task in late:
                task.cancel()
            leaving = [asyncio.ensure_future(_say_goodbye(each)) for each in self._tasks.values()]
            await asyncio.wait(leaving, timeout=_LEAVE_SECONDS)

    def _start_watcher(self, watcher: Watcher, wait: float) -> None:
        self._tasks[asyncio.ensure_future(self._poll_forever(watcher, wait))] = watcher

    async def _poll_forever(self, watcher: Watcher, wait: float) -> None:
        away = False
        while not await self._ends_within(wait):
            try:
                await watcher.poll()
                if away:
                    away = False
                    log.info("store.back", thread=watcher.name)
            except (RedisError, StoreUnavailable) as error:
                if not away:  # log only once per outage
                    away = True
                    log.warning("store.away", thread=watcher.name, error=type(error).__name__)
            except Exception:
                if not self._closing.is_set():
                    log.exception("poll.failed", thread=watcher.name)
            wait = watcher.seconds

    async def _ends_within(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await self._ending.wait()
        except TimeoutError:
            return self._closing.is_set()
        return True


async def _say_goodbye(watcher: Watcher) -> None:
    try:
        await watcher.leave()
    except (RedisError, StoreUnavailable) as error:
        log.info("watch.not_left", thread=watcher.name, error=type(error).__name__)
