"""A runner whose agent is a process: what to start, and what its end means. In the worker's loop, or in a thread."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import structlog

from api_client.contract.settings import Settings, load
from worker.files import recording
from worker.runners.base import AgentEvent, Emit, Order, RunResult, Stop, Verdict
from worker.runners.guard import processes
from worker.runners.guard.agent_process import Exit
from worker.runners.guard.launch import Begun, Launch, begin, ended_before, run
from worker.runners.guard.processes import Processes
from worker.runners.guard.supervision import Ending
from worker.runners.guard.watch import watched
from worker.runners.transcript import AnswerTooLong

log = structlog.get_logger()


def _nothing() -> None:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The reader of one run.

    Attributes:
        take_line: makes events of a line of its output; never blocks.
        conclude: the result, once the agent has ended; may emit further events, and may block.
        clear: removes what the run needs no more, however it ended; may block.
    """

    take_line: Callable[[bytes], Iterable[AgentEvent]]
    conclude: Callable[[Ending, Emit], RunResult]
    clear: Callable[[], None] = _nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class Play(Reading):
    """One run that is prepared: how it is read, and what is started."""

    launch: Launch


class ProcessRunner:
    """Base of runners with a process. A subclass says what a run is: ``prepare``."""

    def __init__(self, agents: Processes | None = None, settings: Settings | None = None) -> None:
        self._agents = agents or processes.shared()
        self._given = settings

    @functools.cached_property
    def _settings(self) -> Settings:
        return self._given or load()

    def prepare(self, order: Order) -> Play | RunResult:
        """Make a run ready, or return the result that says why not. May block."""
        raise NotImplementedError

    def read_back(self, order: Order) -> Reading | RunResult:
        """Return how a run that was prepared before is read, in the folder that it left. May block."""
        return self.prepare(order)

    def adopt(self, order: Order) -> RunResult | None:
        """The result of a delivery that finished and that its worker could not commit; None without one.

        Only a complete run counts: anything else is to be run again. May block.
        """
        found = recording.finished(order.directory)
        reading = self.read_back(order) if found else None
        if found is None or not isinstance(reading, Reading):
            return None
        try:
            for line in filter(bytes.strip, found.output.split(b"\n")):
                reading.take_line(line)
            result = reading.conclude(ended_before(found), lambda _: None)
        except (AnswerTooLong, OSError) as error:
            log.warning("run.not_adopted", mark=order.mark, error=str(error)[:200])
            return None
        if result.completion.verdict is not Verdict.COMPLETE:
            log.warning("run.not_adopted", mark=order.mark, error=result.completion.reason[:200])
            return None
        reading.clear()
        return result

    def run(self, order: Order, emit: Emit, stop: Stop) -> RunResult:
        """Run the agent once, in this thread. Every failure of it is a verdict."""
        play = self.prepare(order)
        if isinstance(play, RunResult):
            return play
        try:
            return play.conclude(run(self._agents, play.launch, order, stop, emit, play.take_line), emit)
        finally:
            play.clear()

    async def run_async(self, order: Order, emit: Emit, stop: Stop) -> RunResult:
        """The same in the running loop, which reads the agent's pipes; what blocks before and after is in threads."""
        loop = asyncio.get_running_loop()

        def emit_from_thread(event: AgentEvent) -> None:
            loop.call_soon_threadsafe(emit, event)

        held = contextlib.ExitStack()
        started = await asyncio.to_thread(self._start, order, emit, stop, held)
        if isinstance(started, RunResult):
            return started
        play, begun = started
        try:
            report = await watched(begun.supervision) if isinstance(begun, Begun) else None
        except BaseException:
            await asyncio.to_thread(_clear, play, held)
            raise
        return await asyncio.to_thread(_concluded, play, begun, report, emit_from_thread, held)

    def _start(
        self, order: Order, emit: Emit, stop: Stop, held: contextlib.ExitStack
    ) -> tuple[Play, Begun | Ending] | RunResult:
        """Prepare a run and start its agent; the result that says why that is not possible."""
        play = self.prepare(order)
        if isinstance(play, RunResult):
            return play
        try:
            return play, begin(self._agents, play.launch, order, stop, emit, play.take_line, held)
        except BaseException:
            _clear(play, held)
            raise


def _concluded(
    play: Play, begun: Begun | Ending, report: Exit | None, emit: Emit, held: contextlib.ExitStack
) -> RunResult:
    """The result of a run that is over, with nothing of it left."""
    try:
        with held:
            ending = begun.ended(report or Exit()) if isinstance(begun, Begun) else begun
        return play.conclude(ending, emit)
    finally:
        play.clear()


def _clear(play: Play, held: contextlib.ExitStack) -> None:
    """Remove what a run needs no more that came to no end."""
    try:
        held.close()
    finally:
        play.clear()
