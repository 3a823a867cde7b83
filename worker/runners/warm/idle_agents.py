"""The idle agent processes of this worker, kept for the next messages of their sessions."""

from __future__ import annotations

import asyncio
import functools
import itertools
import threading
import time
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, cast

import structlog

from worker.runners.base import Emit, Order, RunResult, Stop, not_begun
from worker.runners.warm.agent_lifecycle import LivingAgent, SpareRunner, WarmLimits, WarmRunner
from worker.runners.warm.spare_demand import SpareDemand

if TYPE_CHECKING:
    from worker.runners.warm.agent_lifecycle import SpareAgent


log = structlog.get_logger()

_MIB = 2**20
#: Memory that a new spare process will use once it is ready, in bytes.
_SPARE_BYTES = 128 * _MIB
#: Memory that idle agents share (their program's pages), in bytes.
_PROGRAM_BYTES = 80 * _MIB
#: Seconds after which a new session's successor spare process is started, so that the session comes first.
_LATER = 1.0
#: Seconds after its last message for which an agent is in use: chats that are held at once keep their agents.
_REST_SECONDS = 10.0
#: A spare process that ends within this many seconds counts as failed.
_STILLBORN = 10.0


class IdleAgents:
    """Keeps a worker's idle agent processes, at most one per session, for the next messages. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: (owner, session) -> process, its memory in bytes, start of idling; least recently used first.
        self._idle: dict[tuple[str, str], tuple[LivingAgent, int, float]] = {}
        self._ended: set[tuple[str, str]] = set()
        self._demand = SpareDemand()
        #: Kind of spare process -> its runner and a sample run; the kinds for which there was no room.
        self._samples: dict[str, tuple[SpareRunner, Order]] = {}
        self._postponed: set[str] = set()
        self._seen = 0.0  # time of the newest wanted kind, in seconds since the epoch
        self._closing = ThreadPoolExecutor(1, "idle-agents")

    def __len__(self) -> int:
        return len(self._idle)

    async def run_message(
        self, runner: WarmRunner, limits: WarmLimits, order: Order, emit: Emit, stop: Stop
    ) -> RunResult:
        """Run one message in the session's idle process, or in a spare or new process, and return the result."""
        launch_key, living = await asyncio.to_thread(
            self._find_agent, runner, limits, order, asyncio.get_running_loop()
        )
        if not launch_key:
            return await runner.run_alone(order, emit, stop)
        if living:
            result = await self._ask_agent(living, limits, order, emit, stop)
            if result is not None:
                return result
        opened = await asyncio.to_thread(runner.open_agent, order, launch_key, stop)
        if isinstance(opened, RunResult):
            return opened
        result = await self._ask_agent(opened, limits, order, emit, stop)
        return result or not_begun("the agent took no message", host=False)

    def _find_agent(
        self, runner: WarmRunner, limits: WarmLimits, order: Order, loop: asyncio.AbstractEventLoop
    ) -> tuple[str, LivingAgent | None]:
        """Return the run's launch key, and the session's idle process or a spare one that it takes over."""
        launch_key = runner.compute_launch_key(order)
        living = self.take_agent(order, launch_key) if launch_key else None
        if living or not launch_key or not limits.spares or not isinstance(runner, SpareRunner):
            return launch_key, living
        part = runner.compute_spare_key(order)
        if not part:
            return launch_key, None
        with self._lock:
            self._demand.record_session(part, time.monotonic())
        later = functools.partial(self._closing.submit, self.start_spares, runner, limits, order, part)
        loop.call_soon_threadsafe(loop.call_later, _LATER, later)
        return launch_key, self._try_spare(order, launch_key, part)

    def _try_spare(self, order: Order, launch_key: str, part: str) -> LivingAgent | None:
        with self._lock:
            name = next(
                (name for name, (one, *_) in self._idle.items() if not name[0] and one.launch_key == part), None
            )
            spare = cast("SpareAgent", self._idle.pop(name)[0]) if name else None
        if spare is None:
            return None
        if spare.bind_session(order, launch_key):
            with self._lock:
                self._demand.record_claim(part)
            return spare
        with self._lock:
            self._demand.record_failure(part, time.monotonic())
        spare.close()
        return None

    def start_spares(self, runner: SpareRunner, limits: WarmLimits, order: Order, part: str) -> None:
        """Start spare processes until the wanted number is ready, within the limits. May block.

        If there is no room, agents that have been idle for a while end, but never the most recently used.
        """
        self._samples = {kind: sample for kind, sample in self._samples.items() if self._is_wanted(kind, limits)}
        self._samples[part] = runner, replace(order, prompt="", messages=())
        while self._wants_spare(part, limits):
            ended = self._make_room(limits)
            if ended is None:
                with self._lock:
                    self._postponed.add(part)
                return
            for living in ended:
                _close_agent(living)
            spare = runner.open_spare(order, part, time.monotonic() + limits.seconds)
            if spare is None:
                with self._lock:
                    self._demand.record_failure(part, time.monotonic())
                return
            self._store_agent(spare, _SPARE_BYTES, limits)

    def foresee_spares(self, runner: SpareRunner, limits: WarmLimits) -> None:
        """Schedule the start of spare processes that other workers' sessions make likely, without waiting."""
        self._closing.submit(self._start_foreseen, runner, limits)

    def _start_foreseen(self, runner: SpareRunner, limits: WarmLimits) -> None:
        self._seen = max(self._seen, time.time() - limits.seconds)
        for at, order in runner.list_wanted_spares(self._seen) if limits.spares else ():
            self._seen = max(self._seen, at)
            if part := runner.compute_spare_key(order):
                with self._lock:
                    self._demand.record_remote_session(part, at - time.time() + time.monotonic())
                self.start_spares(runner, limits, order, part)
        with self._lock:
            postponed, self._postponed = self._postponed, set()
        for part in postponed & self._samples.keys():
            self._closing.submit(self._retry_spare, part, limits)

    def _retry_spare(self, part: str, limits: WarmLimits) -> None:
        runner, order = self._samples[part]
        if part == runner.compute_spare_key(order):  # else another program would start now
            self.start_spares(runner, limits, order, part)

    def _is_wanted(self, part: str, limits: WarmLimits) -> bool:
        with self._lock:
            return bool(self._demand.count_wanted(part, limits, time.monotonic()))

    def _wants_spare(self, part: str, limits: WarmLimits) -> bool:
        with self._lock:
            there = sum(not owner and one.launch_key == part for (owner, _), (one, *_) in self._idle.items())
            return there < self._demand.count_wanted(part, limits, time.monotonic())

    def _make_room(self, limits: WarmLimits) -> list[LivingAgent] | None:
        """Remove and return as many idle agents as must end for a spare process. Return None if that is impossible."""
        with self._lock:
            kept, now = [key for key in self._idle if key[0]], time.monotonic()
            rested = [key for key in kept[:-1] if now - self._idle[key][2] >= _REST_SECONDS]
            for number in range(len(rested) + 1):
                without = rested[:number]
                if len(self._idle) - number < limits.processes and self._fits_memory(_SPARE_BYTES, limits, without):
                    self._ended.update(without)
                    return [self._idle.pop(key)[0] for key in without]
        return None

    async def _ask_agent(
        self, living: LivingAgent, limits: WarmLimits, order: Order, emit: Emit, stop: Stop
    ) -> RunResult | None:
        try:
            result = await living.answer_message(order, emit, stop)
        except BaseException:
            await asyncio.to_thread(living.close)
            raise
        if result and living.can_be_kept:
            await asyncio.to_thread(self.keep_agent, living, limits)
            seconds, owner = _REST_SECONDS, living.session[0]
            asyncio.get_running_loop().call_later(seconds, self.end_surplus, owner, limits, seconds)
            return replace(result, kept_seconds=limits.seconds)
        self._ended.add(living.session)
        await asyncio.to_thread(living.close)
        return result

    def take_agent(self, order: Order, launch_key: str) -> LivingAgent | None:
        """Remove and return the session's idle agent, or None. An idle agent that does not suit the run is closed."""
        with self._lock:
            living = self._idle.pop((order.owner, order.session_id), (None,))[0]
        if living is None or (living.launch_key == launch_key and living.continues(order)):
            return living
        self._ended.add(living.session)
        living.close()
        return None

    def keep_agent(self, living: LivingAgent, limits: WarmLimits) -> None:
        """Keep a process for its session's next message, and end other processes that exceed the limits."""
        self._store_agent(living, living.measure_memory(), limits)

    def _store_agent(self, living: LivingAgent, size: int, limits: WarmLimits) -> None:
        with self._lock:
            before = self._idle.pop(living.session, None)
            self._idle[living.session] = (living, size, time.monotonic())
            ended = [*([before[0]] if before else ()), *self._pop_surplus(limits)]
        living.mark_idle(time.monotonic() + limits.seconds)
        self._schedule_end(ended)

    def remove_ended(self, living: LivingAgent) -> None:
        """Remove an idle process that has ended by itself, without waiting."""
        with self._lock:
            found, _, since = self._idle.get(living.session, (None, 0, 0.0))
            ours, now = found is living, time.monotonic()
            if ours:
                del self._idle[living.session]
            if ours and not living.session[0] and now - since < _STILLBORN:
                self._demand.record_failure(living.launch_key, now)
        if ours:
            self._schedule_end([living])

    def idle_sessions(self) -> dict[tuple[str, str], float]:
        """Return the sessions with an idle process, each with the ``time.monotonic()`` of its last message."""
        with self._lock:
            return {session: since for session, (_, _, since) in self._idle.items() if session[0]}

    def describe_idle(self) -> dict[str, tuple[float, int]]:
        """Return each idle process's memory in bytes and the time when it became idle (epoch seconds), by session."""
        ahead, number = time.time() - time.monotonic(), itertools.count(1)
        with self._lock:
            return {
                session if owner else f"(spare {next(number)})": (since + ahead, size)
                for (owner, session), (_, size, since) in self._idle.items()
            }

    def pop_ended_sessions(self) -> set[tuple[str, str]]:
        """Return the sessions whose idle process has ended since the last call without being replaced."""
        with self._lock:
            ended = self._ended.copy()
            self._ended -= ended  # others may add to it meanwhile
            return {session for session in ended - self._idle.keys() if session[0]}

    def end_agent(self, session: tuple[str, str]) -> None:
        """End the idle process of a session in the background, because another worker continues the conversation."""
        with self._lock:
            living = self._idle.pop(session, (None,))[0]
        if living:
            self._schedule_end([living])

    def end_all(self) -> None:
        """End all idle processes in the background, because the machine is short of resources."""
        with self._lock:
            found, self._idle = [living for living, *_ in self._idle.values()], {}
        self._schedule_end(found)

    def close(self) -> None:
        """End all idle and spare processes, and wait until they are gone."""
        self._closing.submit(lambda: None).result()
        self.end_all()
        self._closing.submit(lambda: None).result()

    def end_surplus(self, owner: str, limits: WarmLimits, idle_seconds: float) -> None:
        """End an owner's processes beyond the limit that have been idle for some seconds, and return at once."""
        with self._lock:
            own = [key for key in self._idle if key[0] == owner]
            since = time.monotonic() - idle_seconds
            over = [key for key in own[: -limits.per_owner] if self._idle[key][2] <= since]
            ended = [self._idle.pop(key)[0] for key in over]
        self._schedule_end(ended)

    def _pop_surplus(self, limits: WarmLimits) -> list[LivingAgent]:
        """Remove and return processes until the limits of all owners together are met.

        Those that have been idle for a while come first, then spare ones; of both, those of owners beyond their own
        limit, then the least recently used.
        """
        out: list[LivingAgent] = []
        since = time.monotonic() - _REST_SECONDS
        while len(self._idle) > limits.processes or not self._fits_memory(0, limits):
            count = Counter(owner for owner, _ in self._idle)

            def rank(key: tuple[str, str], count: Counter[str] = count) -> tuple[int, bool]:
                group = 1 if not key[0] else 0 if self._idle[key][2] <= since else 2
                return group, count[key[0]] <= limits.per_owner

            over = min(self._idle, key=rank)
            out.append(self._idle.pop(over)[0])
            if not over[0]:
                self._postponed.add(out[-1].launch_key)
        return out

    def _fits_memory(self, more: int, limits: WarmLimits, without: Iterable[tuple[str, str]] = ()) -> bool:
        held = more + sum(size for _, size, _ in self._idle.values()) - sum(self._idle[key][1] for key in without)
        return not limits.memory_mb or not held or held + _PROGRAM_BYTES <= limits.memory_mb * _MIB

    def _schedule_end(self, found: Iterable[LivingAgent]) -> None:
        for living in found:
            self._ended.add(living.session)
            self._closing.submit(_close_agent, living)


def _close_agent(living: LivingAgent) -> None:
    try:
        living.close()
    except OSError as error:
        log.warning("agent.not_closed", session_id=living.session[1], error=str(error)[:200])


@functools.cache
def shared_idle_agents() -> IdleAgents:
    return IdleAgents()
