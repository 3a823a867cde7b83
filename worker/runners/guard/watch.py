"""Watch agents in the event loop, without a thread per run.

The loop reads the agents' output and checks all agents every ``PATIENCE`` seconds. Two threads per process do the
blocking work: sending orders to the guard, and measuring resource usage.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from concurrent.futures import ThreadPoolExecutor

from worker.runners.guard.agent_process import Exit
from worker.runners.guard.supervision import PATIENCE, Supervision


async def watched(supervision: Supervision) -> Exit | None:
    """Watch an agent in the event loop until it ends, or until ``Supervision.settled`` is set (None).

    Exceptions of the line callback, and a cancellation, kill the agent and are raised. Call ``Supervision.ending``
    afterwards, in a thread.
    """
    loop, process = asyncio.get_running_loop(), supervision.process
    watch, rounds = _Watch(supervision, loop.create_future()), _rounds.get(loop) or _Rounds(loop)
    rounds.watches.add(watch)
    process.attach(loop, watch.hear, watch.ended, _orders())
    try:
        ended = await watch.done
    except BaseException:
        supervision.end("failed", grace=0)
        process.close()
        raise
    finally:
        rounds.discard(watch)
    process.detach()
    return ended


class _Watch:
    def __init__(self, supervision: Supervision, done: asyncio.Future[Exit | None]) -> None:
        self.supervision = supervision
        self.done = done
        self._fault: BaseException | None = None

    def hear(self, piece: bytes) -> None:
        if self._fault:
            return  # the agent is being killed: discard the output
        try:
            self.supervision.hear(piece)
        except Exception as fault:
            self._give_up(fault)
        if self.supervision.settled and not self.done.done():
            self.done.set_result(None)

    def ended(self) -> None:
        if self.done.done():
            return  # the caller has stopped waiting
        while piece := self.supervision.process.read(0):
            self.hear(piece)
        if not self._fault:
            try:
                self.supervision.hear_rest()
            except Exception as fault:
                self._fault = fault
        if self._fault:
            self.done.set_exception(self._fault)
        else:
            self.done.set_result(self.supervision.process.wait(0) or Exit())

    def _give_up(self, fault: Exception) -> None:
        self._fault = fault
        self.supervision.end("failed", grace=0)


class _Rounds:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.watches: set[_Watch] = set()
        self._weighing: asyncio.Future[None] | None = None
        self._next = loop.call_later(PATIENCE, self._look)
        _rounds[loop] = self

    def discard(self, watch: _Watch) -> None:
        self.watches.discard(watch)
        if not self.watches:
            self._next.cancel()
            del _rounds[self._loop]

    def _look(self) -> None:
        self._next = self._loop.call_later(PATIENCE, self._look)
        for watch in self.watches:
            watch.supervision.check()
        if self._weighing is None or self._weighing.done():
            self._weighing = self._loop.run_in_executor(_scales(), self._weigh, tuple(self.watches))

    def _weigh(self, watches: tuple[_Watch, ...]) -> None:
        for watch in watches:
            if not watch.done.done() and (exceeded := watch.supervision.exceeded()):
                with contextlib.suppress(RuntimeError):  # the loop was closed
                    self._loop.call_soon_threadsafe(watch.supervision.weigh, exceeded)


_rounds: dict[asyncio.AbstractEventLoop, _Rounds] = {}


@functools.cache
def _orders() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, "guard-orders")


@functools.cache
def _scales() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, "footprints")
