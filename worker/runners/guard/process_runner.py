"""A runner whose agent is a process: what to start, and what its end means.

In the worker's loop, or in a thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import structlog

from api_client.contract.completion import Verdict
from api_client.contract.settings import Settings, load
from worker.files import recording
from worker.runners.base import AgentEvent, Emit, Order, RunResult, Stop
from worker.runners.guard import call_record, processes
from worker.runners.guard.agent_process import Exit
from worker.runners.guard.launch import Begun, Launch, begin, ended_before
from worker.runners.guard.processes import Processes
from worker.runners.guard.supervision import Ending
from worker.runners.guard.watch import watched
from worker.runners.transcript import AnswerTooLong

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReader:
    """The reader of one run.

    Attributes:
        take_line: makes events of a line of its output; never blocks.
        conclude: the result, once the agent has ended; may emit further events, and may block.
        clear: removes what the run needs no more, however it ended; may block.
        finished: says whether the agent has said and proven its end; then it is ended where it does not exit.
    """

    take_line: Callable[[bytes], Iterable[AgentEvent]]
    conclude: Callable[[Ending, Emit], RunResult]
    clear: Callable[[], None] = lambda: None
    finished: Callable[[], bool] = lambda: False

    def play(self, launch: Launch) -> Play:
        """The run that starts with this launch."""
        return Play(
            launch=launch, take_line=self.take_line, conclude=self.conclude, clear=self.clear, finished=self.finished
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Play(RunReader):
    """One run that is prepared: how it is read, and the launch that starts it."""

    launch: Launch


class ProcessRunner:
    """Base of runners with a process. A subclass says what a run is: ``prepare``."""

    #: Whether the empty lines of its agents' output count too.
    blank_lines = False

    def __init__(self, agents: Processes | None = None, settings: Settings | None = None) -> None:
        self._agents = agents or processes.shared()
        self._given = settings

    @functools.cached_property
    def _settings(self) -> Settings:
        return self._given or load()

    def problem(self, option: str, settings: Settings) -> str:
        """Say why no run of a model can ever pass, by its settings alone; empty when one may."""
        return ""

    def missing(self, option: str, settings: Settings) -> str:
        """Say why this machine cannot run it: its program is not there; empty when it is."""
        return ""

    def tried(self, option: str, settings: Settings) -> str:
        """Say why its agent, whose program is there, cannot be run, by trying; empty when it can. Takes seconds."""
        return ""

    def certified(self, option: str, settings: Settings) -> tuple[str, str]:
        """Return the path of its agent's program, and the version that was certified; empty where there is none."""
        return "", ""

    def listed_name(self, option: str, settings: Settings) -> str:
        """Return the name under which the service of a model lists it; empty where it asks none."""
        return ""

    def prepare(self, order: Order) -> Play | RunResult:
        """Make a run ready, or return the result that says why not. May block."""
        raise NotImplementedError

    def read_back(self, order: Order) -> RunReader | RunResult:
        """Return how a run that was prepared before is read, in the folder that it left. May block."""
        return self.prepare(order)

    def adopt(self, order: Order) -> RunResult | None:
        """The result of a delivery that finished and that its worker could not commit; None without one.

        Only a complete run counts, and one that ended with a question: anything else is to be run again. May block.
        """
        found = recording.finished(order.directory)
        reading = self.read_back(order) if found else None
        if found is None or not isinstance(reading, RunReader):
            return None

        def concluded() -> RunResult:
            for line in found.output.removesuffix(b"\n").split(b"\n"):
                if self.blank_lines or line.strip():
                    reading.take_line(line)
            ending = replace(ended_before(found), witnessed=call_record.adopted(order.directory))
            return reading.conclude(ending, lambda _: None)

        result = self._taken_over(order, concluded)
        if result:
            reading.clear()
        return result

    def _taken_over(self, order: Order, conclude: Callable[[], RunResult | None]) -> RunResult | None:
        """The result of a run that was read from its recording, where that is complete."""
        try:
            result = conclude()
        except (AnswerTooLong, OSError) as error:
            log.warning("run.not_adopted", mark=order.mark, error=str(error)[:200])
            return None
        if result and result.completion.verdict not in {Verdict.COMPLETE, Verdict.ASKS}:
            log.warning("run.not_adopted", mark=order.mark, error=result.completion.reason[:200])
            return None
        return result

    def run(self, order: Order, emit: Emit, stop: Stop) -> RunResult:
        """Run the agent once, in this thread. Every failure of it is a verdict."""
        held = contextlib.ExitStack()
        started = self._start(order, emit, stop, held)
        if isinstance(started, RunResult):
            return started
        play, begun = started
        try:
            report = begun.supervision.watch() if isinstance(begun, Begun) else None
        except BaseException:
            _clear(play, held)
            raise
        return _concluded(play, begun, report, emit, held)

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
            begun = begin(self._agents, play.launch, order, stop, emit, play.take_line, held)
            if isinstance(begun, Begun):
                begun.supervision.finished = play.finished
            return play, begun
        except BaseException:
            _clear(play, held)
            raise


def _concluded(
    play: Play, begun: Begun | Ending, report: Exit | None, emit: Emit, held: contextlib.ExitStack
) -> RunResult:
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
