"""The idle agents of this worker process, one a session: taken for the next message, ended in good time."""

from __future__ import annotations

import asyncio
import functools
import threading
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import structlog

from worker.runners.base import Emit, Order, RunResult, Stop, not_begun
from worker.runners.warm.life import Limits, Living, Opens

log = structlog.get_logger()

_MIB = 2**20


class IdleAgents:
    """Used by many threads at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: The least recently used first, with the bytes each held when its last message ended, and when that was.
        self._idle: dict[tuple[str, str], tuple[Living, int, float]] = {}
        self._ended: set[tuple[str, str]] = set()
        self._closing = ThreadPoolExecutor(1, "idle-agents")

    def __len__(self) -> int:
        return len(self._idle)

    async def run(self, runner: Opens, limits: Limits, order: Order, emit: Emit, stop: Stop) -> RunResult:
        """Run one message: in the process that the session's last message left, or in a new one."""
        fixed = await asyncio.to_thread(runner.fixed_part, order)
        if not fixed:
            return await runner.run_alone(order, emit, stop)
        if living := await asyncio.to_thread(self.take, order, fixed):
            result = await self._ask(living, limits, order, emit, stop)
            if result is not None:
                return result
        opened = await asyncio.to_thread(runner.open, order, fixed, stop)
        if isinstance(opened, RunResult):
            return opened
        result = await self._ask(opened, limits, order, emit, stop)
        return result or not_begun("the agent took no message", host=False)

    async def _ask(self, living: Living, limits: Limits, order: Order, emit: Emit, stop: Stop) -> RunResult | None:
        try:
            result = await living.ask(order, emit, stop)
        except BaseException:
            await asyncio.to_thread(living.close)
            raise
        if result and living.keepable:
            await asyncio.to_thread(self.put, living, limits)
            return replace(result, kept_seconds=limits.seconds)
        self._ended.add(living.session)
        await asyncio.to_thread(living.close)
        return result

    def take(self, order: Order, fixed: str) -> Living | None:
        """The process that may take the order's message; one that may not is gone when this returns."""
        with self._lock:
            living = self._idle.pop((order.owner, order.session_id), (None,))[0]
        if living is None or (living.fixed == fixed and living.continues(order)):
            return living
        self._ended.add(living.session)
        living.close()
        return None

    def put(self, living: Living, limits: Limits) -> None:
        """Keep a process until its session's next message; whichever are too many are ended."""
        size = living.memory()
        with self._lock:
            before = self._idle.pop(living.session, None)
            self._idle[living.session] = (living, size, time.monotonic())
            ended = [*([before[0]] if before else ()), *self._too_many(living.session[0], limits)]
        living.rest(time.monotonic() + limits.seconds)
        self._end(ended)

    def forget(self, living: Living) -> None:
        """A process has ended by itself, or rested too long: remove what it leaves. Never blocks."""
        with self._lock:
            ours = self._idle.get(living.session, (None,))[0] is living
            if ours:
                del self._idle[living.session]
        if ours:
            self._end([living])

    def resting(self) -> dict[tuple[str, str], float]:
        """The sessions (owner and id) whose agents wait here, each with when its last message ended (monotonic)."""
        with self._lock:
            return {session: since for session, (_, _, since) in self._idle.items()}

    def seen(self) -> dict[str, tuple[float, int]]:
        """The sessions whose agents wait here: since when, in seconds since the epoch, and the bytes each holds."""
        ahead = time.time() - time.monotonic()
        with self._lock:
            return {session: (since + ahead, size) for (_, session), (_, size, since) in self._idle.items()}

    def ended(self) -> set[tuple[str, str]]:
        """The sessions whose agents have ended here since this was last asked, and that have no other."""
        with self._lock:
            ended, self._ended = self._ended - self._idle.keys(), set()
        return ended

    def end(self, session: tuple[str, str]) -> None:
        """End a session's agent, soon, if it waits here: another worker has gone on with the conversation."""
        with self._lock:
            living = self._idle.pop(session, (None,))[0]
        if living:
            self._end([living])

    def end_all(self) -> None:
        """End them all, soon: this machine is short of something. Never blocks."""
        with self._lock:
            found, self._idle = [living for living, *_ in self._idle.values()], {}
        self._end(found)

    def close(self) -> None:
        """End them all; returns when they are gone."""
        self.end_all()
        self._closing.submit(lambda: None).result()

    def _too_many(self, owner: str, limits: Limits) -> list[Living]:
        """Take out the least recently used, until no limit is passed. Under the lock."""
        out: list[Living] = []
        while over := self._over(owner, limits):
            out.append(self._idle.pop(over)[0])
        return out

    def _over(self, owner: str, limits: Limits) -> tuple[str, str] | None:
        own = [key for key in self._idle if key[0] == owner]
        if len(own) > limits.per_owner:
            return own[0]
        held = sum(size for _, size, _ in self._idle.values())
        if len(self._idle) > limits.processes or (limits.memory_mb and held > limits.memory_mb * _MIB):
            return next(iter(self._idle))
        return None

    def _end(self, found: Iterable[Living]) -> None:
        for living in found:
            self._ended.add(living.session)
            self._closing.submit(_close, living)


def _close(living: Living) -> None:
    try:
        living.close()
    except OSError as error:
        log.warning("agent.not_closed", session_id=living.session[1], error=str(error)[:200])


@functools.cache
def shared() -> IdleAgents:
    """The idle agents of this worker process."""
    return IdleAgents()
