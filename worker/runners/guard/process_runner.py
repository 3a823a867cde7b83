"""Base of all runners that start an agent process, in a thread or in the event loop."""

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
    """The callbacks that turn the output of one run into events and a result.

    Attributes:
        take_line: makes events from one line; must not block.
        conclude: makes the result after the end; may emit events and block.
        clear: removes temporary files, whatever the outcome; may block.
        finished: True once the agent has proven its end, so that it may be killed if it hangs.
    """

    take_line: Callable[[bytes], Iterable[AgentEvent]]
    conclude: Callable[[Ending, Emit], RunResult]
    clear: Callable[[], None] = lambda: None
    finished: Callable[[], bool] = lambda: False

    def play(self, launch: Launch) -> Play:
        """Build a prepared run from this reader and a launch."""
        return Play(
            launch=launch, take_line=self.take_line, conclude=self.conclude, clear=self.clear, finished=self.finished
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Play(RunReader):
    """A prepared run: the launch that starts the agent, and the callbacks that read its output."""

    launch: Launch


class ProcessRunner:
    """Base class of runners that start a process; subclasses implement ``prepare``."""

    #: True to pass empty lines of the agent's output to ``take_line``.
    blank_lines = False

    def __init__(self, agents: Processes | None = None, settings: Settings | None = None) -> None:
        self._agents = agents or processes.shared()
        self._given = settings

    @functools.cached_property
    def _settings(self) -> Settings:
        return self._given or load()

    def problem(self, option: str, settings: Settings) -> str:
        """Return why the settings make every run of this model fail; empty if they do not."""
        return ""

    def missing(self, option: str, settings: Settings) -> str:
        """Return which program this machine lacks; empty if it is installed."""
        return ""

    def tried(self, option: str, settings: Settings) -> str:
        """Start the agent as a trial, and return its error; empty on success. Takes seconds."""
        return ""

    def certified(self, option: str, settings: Settings) -> tuple[str, str]:
        """Return the path of the agent's program and its certified version."""
        return "", ""

    def listed_name(self, option: str, settings: Settings) -> str:
        """Return the model's name in its service's model list."""
        return ""

    def prepare(self, order: Order) -> Play | RunResult:
        """Prepare a run, or return a result that explains why the run is impossible. May block."""
        raise NotImplementedError

    def read_back(self, order: Order) -> RunReader | RunResult:
        """Return a reader for the recording of an earlier run in the order's folder. May block."""
        return self.prepare(order)

    def adopt(self, order: Order) -> RunResult | None:
        """Return the result of a finished run that an earlier worker did not commit, or None.

        Accepts only complete runs and runs that ended with a question; any other run is repeated. May block.
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
        """Run the agent once in this thread."""
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
        """Run the agent once in the event loop; blocking steps run in threads."""
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
    try:
        held.close()
    finally:
        play.clear()
