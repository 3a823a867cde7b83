"""Watch agents in the event loop, without a thread per run."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from concurrent.futures import ThreadPoolExecutor

from worker.runners.sandbox.agent_process import AgentExit
from worker.runners.sandbox.supervision import PATIENCE, Supervision


async def watch_in_loop(supervision: Supervision) -> AgentExit | None:
    """Watch an agent in the event loop until it ends, and return the guard's report.

    Returns None if ``Supervision.settled`` is set first. Exceptions of the line callback, and a cancellation, kill the
    agent and are raised.
    """
    loop, process = asyncio.get_running_loop(), supervision.process
    watch, rounds = _AgentWatch(supervision, loop.create_future()), _rounds.get(loop) or _WatchRounds(loop)
    rounds.watches.add(watch)
    process.attach_loop(loop, watch.take_output, watch.finish_watch, _order_executor())
    try:
        ended = await watch.done
    except BaseException:
        supervision.end_agent("failed", grace=0)
        process.close()
        raise
    finally:
        rounds.discard_watch(watch)
    process.detach_loop()
    return ended


class _AgentWatch:
    def __init__(self, supervision: Supervision, done: asyncio.Future[AgentExit | None]) -> None:
        self.supervision = supervision
        self.done = done
        self._fault: BaseException | None = None

    def take_output(self, piece: bytes) -> None:
        if self._fault:
            return  # the agent is being killed: discard the output
        try:
            self.supervision.take_output(piece)
        except Exception as fault:
            self._fail_watch(fault)
        if self.supervision.settled and not self.done.done():
            self.done.set_result(None)

    def finish_watch(self) -> None:
        if self.done.done():
            return  # the caller has stopped waiting
        while piece := self.supervision.process.read_output(0):
            self.take_output(piece)
        if not self._fault:
            try:
                self.supervision.take_last_line()
            except Exception as fault:
                self._fault = fault
        if self._fault:
            self.done.set_exception(self._fault)
        else:
            self.done.set_result(self.supervision.process.wait_for_end(0) or AgentExit())

    def _fail_watch(self, fault: Exception) -> None:
        self._fault = fault
        self.supervision.end_agent("failed", grace=0)


class _WatchRounds:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.watches: set[_AgentWatch] = set()
        self._weighing: asyncio.Future[None] | None = None
        self._next = loop.call_later(PATIENCE, self._check_agents)
        _rounds[loop] = self

    def discard_watch(self, watch: _AgentWatch) -> None:
        self.watches.discard(watch)
        if not self.watches:
            self._next.cancel()
            del _rounds[self._loop]

    def _check_agents(self) -> None:
        self._next = self._loop.call_later(PATIENCE, self._check_agents)
        for watch in self.watches:
            watch.supervision.check_limits()
        if self._weighing is None or self._weighing.done():
            self._weighing = self._loop.run_in_executor(_measure_executor(), self._measure_agents, tuple(self.watches))

    def _measure_agents(self, watches: tuple[_AgentWatch, ...]) -> None:
        for watch in watches:
            if not watch.done.done() and (exceeded := watch.supervision.find_exceeded()):
                with contextlib.suppress(RuntimeError):  # the loop was closed
                    self._loop.call_soon_threadsafe(watch.supervision.enforce_limit, exceeded)


_rounds: dict[asyncio.AbstractEventLoop, _WatchRounds] = {}


@functools.cache
def _order_executor() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, "guard-orders")


@functools.cache
def _measure_executor() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, "footprints")
