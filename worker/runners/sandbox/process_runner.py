"""Base of all runners that start an agent process, in a thread or in the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import structlog

from api_client.contract.completion import Verdict
from api_client.contract.errors import SettingsError
from api_client.contract.settings import Settings, load_settings
from worker.files import recording
from worker.runners.base import AgentEvent, Emit, Order, RunResult, Stop, config_error
from worker.runners.event_reader import AnswerTooLong
from worker.runners.sandbox import call_log, guard_client
from worker.runners.sandbox.agent_process import AgentExit
from worker.runners.sandbox.guard_client import AgentProcesses
from worker.runners.sandbox.launch import Launch, StartedAgent, rebuild_ending, start_agent
from worker.runners.sandbox.loop_watch import watch_in_loop
from worker.runners.sandbox.supervision import RunEnding

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReader:
    """The callbacks that turn the output of a run into events and a result.

    Attributes:
        take_line: makes events from one line; must not block.
        conclude: makes the result after the end; may emit events and block.
        clear: removes temporary files, whatever the outcome; may block.
        finished: True once the agent has proven its end, so that it may be killed if it hangs.
    """

    take_line: Callable[[bytes], Iterable[AgentEvent]]
    conclude: Callable[[RunEnding, Emit], RunResult]
    clear: Callable[[], None] = lambda: None
    finished: Callable[[], bool] = lambda: False

    def with_launch(self, launch: Launch) -> PreparedRun:
        """Return a prepared run that starts the agent as ``launch`` describes and uses these callbacks."""
        return PreparedRun(
            launch=launch, take_line=self.take_line, conclude=self.conclude, clear=self.clear, finished=self.finished
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedRun(RunReader):
    """A run that is ready to start, with the callbacks that read its output."""

    launch: Launch


class ProcessRunner:
    """Base class of runners that start a process for each run. Subclasses implement ``prepare_run``."""

    #: True to pass empty lines of the agent's output to ``take_line``.
    blank_lines = False

    def __init__(self, agents: AgentProcesses | None = None, settings: Settings | None = None) -> None:
        self._agents = agents or guard_client.shared_processes()
        self._given = settings

    @functools.cached_property
    def _settings(self) -> Settings:
        return self._given or load_settings()

    def find_config_problem(self, option: str, settings: Settings) -> str:
        """Return why every run of this model would fail with these settings, or an empty string."""
        return ""

    def find_missing_program(self, option: str, settings: Settings) -> str:
        """Return the name of the program that this machine lacks, or an empty string."""
        return ""

    def try_agent(self, option: str, settings: Settings) -> str:
        """Start the agent as a test, which takes seconds. Return the error, or an empty string if the agent works."""
        return ""

    def certified_version(self, option: str, settings: Settings) -> tuple[str, str]:
        """Return the path of the agent's program, and the certified version of the program."""
        return "", ""

    def listed_name(self, option: str, settings: Settings) -> str:
        """Return the name by which the service lists the model."""
        return ""

    def prepare_run(self, order: Order) -> PreparedRun | RunResult:
        """Prepare a run and return it, or return a result that explains why the run is impossible. May block."""
        raise NotImplementedError

    def read_back(self, order: Order) -> RunReader | RunResult:
        """Return a reader that turns the recording of an earlier run into a result. May block."""
        return self.prepare_run(order)

    def adopt(self, order: Order) -> RunResult | None:
        """Return the result of a run that had ended before its worker died, or else None. May block.

        Accepts only complete runs and runs that ended with a question; any other run is repeated.
        """
        found, reading = recording.read_finished(order.directory), None
        with contextlib.suppress(SettingsError):  # then a new run reports it
            reading = self.read_back(order) if found else None
        if found is None or not isinstance(reading, RunReader):
            return None

        def conclude_recording() -> RunResult:
            for line in found.output.removesuffix(b"\n").split(b"\n"):
                if self.blank_lines or line.strip():
                    reading.take_line(line)
            ending = replace(rebuild_ending(found), observed_calls=call_log.read_adopted_calls(order.directory))
            return reading.conclude(ending, lambda _: None)

        result = self._accept_adopted(order, conclude_recording)
        if result:
            reading.clear()
        return result

    def _accept_adopted(self, order: Order, conclude: Callable[[], RunResult | None]) -> RunResult | None:
        try:
            result = conclude()
        except (AnswerTooLong, OSError) as error:
            log.warning("run.not_adopted", mark=order.process_tag, error=str(error)[:200])
            return None
        if result and result.completion.verdict not in {Verdict.COMPLETE, Verdict.ASKS}:
            log.warning("run.not_adopted", mark=order.process_tag, error=result.completion.reason[:200])
            return None
        return result

    def run(self, order: Order, emit: Emit, stop: Stop) -> RunResult:
        """Run the agent once in this thread and return its result."""
        held = contextlib.ExitStack()
        started = self._start_run(order, emit, stop, held)
        if isinstance(started, RunResult):
            return started
        play, begun = started
        try:
            report = begun.supervision.watch_agent() if isinstance(begun, StartedAgent) else None
        except BaseException:
            _clear_run(play, held)
            raise
        return _conclude_run(play, begun, report, emit, held)

    async def run_async(self, order: Order, emit: Emit, stop: Stop) -> RunResult:
        """Run the agent once in the event loop and return its result. Blocking steps run in threads."""
        loop = asyncio.get_running_loop()

        def emit_from_thread(event: AgentEvent) -> None:
            loop.call_soon_threadsafe(emit, event)

        held = contextlib.ExitStack()
        started = await asyncio.to_thread(self._start_run, order, emit, stop, held)
        if isinstance(started, RunResult):
            return started
        play, begun = started
        try:
            report = await watch_in_loop(begun.supervision) if isinstance(begun, StartedAgent) else None
        except BaseException:
            await asyncio.to_thread(_clear_run, play, held)
            raise
        return await asyncio.to_thread(_conclude_run, play, begun, report, emit_from_thread, held)

    def _start_run(
        self, order: Order, emit: Emit, stop: Stop, held: contextlib.ExitStack
    ) -> tuple[PreparedRun, StartedAgent | RunEnding] | RunResult:
        try:
            play = self.prepare_run(order)
        except SettingsError as error:
            return config_error(str(error))
        if isinstance(play, RunResult):
            return play
        try:
            begun = start_agent(self._agents, play.launch, order, stop, emit, play.take_line, held)
            if isinstance(begun, StartedAgent):
                begun.supervision.finished = play.finished
            return play, begun
        except BaseException:
            _clear_run(play, held)
            raise


def _conclude_run(
    play: PreparedRun, begun: StartedAgent | RunEnding, report: AgentExit | None, emit: Emit, held: contextlib.ExitStack
) -> RunResult:
    try:
        with held:
            ending = begun.build_ending(report or AgentExit()) if isinstance(begun, StartedAgent) else begun
        return play.conclude(ending, emit)
    finally:
        play.clear()


def _clear_run(play: PreparedRun, held: contextlib.ExitStack) -> None:
    try:
        held.close()
    finally:
        play.clear()
