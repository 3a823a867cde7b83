"""The runner of the Claude CLI: one process per run, judged by evidence (docs/claude-cli.md).

The Claude SDK is not used: it passes our whole environment to the CLI, ignores process groups, and needs seconds to
cancel.
"""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from api_client.contract.completion import ErrorKind, Verdict, Why
from api_client.contract.errors import SettingsError
from api_client.contract.settings import Settings
from worker.files import recording
from worker.files.safe_io import SHORT_OF
from worker.runners.agent_sessions import home_of, session_of
from worker.runners.base import Emit, Order, RunResult, Stop, config_error, not_begun
from worker.runners.claude import cli_sessions, exchange, hooks, living, spare
from worker.runners.claude import command as claude_sessions
from worker.runners.claude import completion_gate as claude_gate
from worker.runners.claude.answer import RunRemains, evidence_of, left_by
from worker.runners.claude.claude_models import model_prices
from worker.runners.claude.cli_program import find_program
from worker.runners.claude.cli_sessions import Base
from worker.runners.claude.cli_stream import ClaudeStream
from worker.runners.claude.command import instructions
from worker.runners.guard.box import BoxError
from worker.runners.guard.process_runner import Play, ProcessRunner, RunReader
from worker.runners.guard.supervision import Ending, stopped
from worker.runners.pricing import charged
from worker.runners.sent import SentInput
from worker.runners.warm import agent_life, idle_agents
from worker.runners.witnessed import weigh


class ClaudeCliRunner(ProcessRunner):
    """Runs ``claude -p`` once; ``claude_cli:opus`` names a model."""

    name = "claude_cli"

    async def run_async(self, order: Order, emit: Emit, stop: Stop) -> RunResult:
        """Run the agent once, in the session's idle process if possible."""
        limits = agent_life.Limits.of(self._settings)
        if not (order.owner and limits.seconds):
            return await super().run_async(order, emit, stop)
        return await idle_agents.shared().run(self, limits, order, emit, stop)

    async def run_alone(self, order: Order, emit: Emit, stop: Stop) -> RunResult:
        """Run the agent once, in a process that ends with the run."""
        return await super().run_async(order, emit, stop)

    def fixed_part(self, order: Order) -> str:
        """Return the part of an order that is fixed at process start; empty if no process can be kept."""
        settings = self._settings.of_model(order.model)
        try:
            return living.fixed_part(settings, find_program(settings), order)
        except (SettingsError, OSError):
            return ""  # a run alone reports the reason

    def adopt(self, order: Order) -> RunResult | None:
        """Return the result of a finished delivery or message, or None."""
        found = recording.recorded(order.directory)
        files = exchange.files_of(found)
        if found is None or files is None:
            return super().adopt(order)
        prices = model_prices(self._settings.of_model(order.model).prices)
        return self._taken_over(order, lambda: exchange.adopted(order, files, found, prices))

    def open(self, order: Order, fixed: str, stop: Stop) -> living.ClaudeLiving | RunResult:
        """Start a process for several messages of the order's session. May block."""
        settings = self._settings.of_model(order.model)
        return living.opened(self._agents, settings, find_program(settings), order, fixed, stop)

    def spare_part(self, order: Order) -> str:
        """Return the part of an order that a spare process must share with the order."""
        settings = self._settings.of_model(order.model)
        try:
            return spare.part_of(settings, find_program(settings), order)
        except (SettingsError, OSError, BoxError):
            return ""  # a cold start reports the reason

    def kinds(self, since: float) -> list[tuple[float, Order]]:
        """List the kinds of spare processes that workers wanted after ``since``."""
        try:
            return list(spare.kinds(self._settings, since))
        except OSError:
            return []

    def open_spare(self, order: Order, part: str, until: float) -> spare.ClaudeSpare | None:
        """Start a spare process for future sessions with similar orders. May block."""
        settings = self._settings.of_model(order.model)
        try:
            return spare.opened_spare(self._agents, settings, find_program(settings), order, part, until)
        except SettingsError:
            return None

    def prepare(self, order: Order) -> Play | RunResult:
        """Prepare folders and command line; a missing program is a configuration error."""
        settings = self._settings.of_model(order.model)
        try:
            program = find_program(settings)
        except SettingsError as error:
            return config_error(str(error))
        home = home_of(order)
        clear = _clearing(home)
        try:
            return self._play(settings, program, home, order)
        except OSError as error:
            clear()
            return not_begun(f"the run's folders could not be made: {error}", host=error.errno in SHORT_OF)
        except BaseException:
            clear()
            raise

    def read_back(self, order: Order) -> RunReader:
        """Return a reader for an earlier run's recording."""
        home = home_of(order)
        return self._reading(order, home, cli_sessions.base_of(order))

    def _reading(self, order: Order, home: Path, base: Base) -> RunReader:
        session, stream = session_of(order), ClaudeStream(order.interruption)
        prompt = exchange.prompt_of(order, base)

        input_text = {"role": "user", "content": prompt.decode("utf-8", "replace")}
        sent = SentInput(system=instructions(home), messages=(input_text,), continues=base.knows)

        def conclude(ending: Ending, emit: Emit) -> RunResult:
            left = left_by(order, session, prompt, base, home, stream)
            return replace(self._conclude(order, ending, stream, left, base, home, emit), sent=sent)

        def finished() -> bool:
            return bool(stream.result) and hooks.is_over(order.directory)

        return RunReader(take_line=stream.take_line, conclude=conclude, clear=_clearing(home), finished=finished)

    def _play(self, settings: Settings, program: str, home: Path, order: Order) -> Play:
        base = cli_sessions.base_of(order)
        claude_sessions.prepare(order, home, settings)
        base = claude_sessions.resumed(order, base, home)
        reading = self._reading(order, home, base)
        prompt = exchange.prompt_of(order, base)
        launch = claude_sessions.launch_of(settings, program, order, home, session_of(order), base, prompt)
        return reading.play(launch)

    def _conclude(
        self, order: Order, ending: Ending, stream: ClaudeStream, left: RunRemains, base: Base, home: Path, emit: Emit
    ) -> RunResult:
        facts = {**ending.evidence, "retries": stream.retries, "continued": base.knows, "text_from": left.origin}
        if stream.skipped:
            facts["skipped_lines"] = stream.skipped
        stop = stopped(ending, order, facts)
        evidence = evidence_of(order, order.mark, session_of(order), ending, stream, left, lives=ending.finished)
        completion = weigh(stop or claude_gate.judge(evidence, facts), ending.witnessed, answer=left.text)
        if completion.kind is ErrorKind.SESSION_LOST:
            cli_sessions.forget(base)
        if completion.verdict is not Verdict.CANCELLED:
            for event in stream.replace(left.text, f"the answer is in the {left.origin}"):
                emit(event)
        goes_on = completion.verdict in {Verdict.COMPLETE, Verdict.ASKS}
        session = cli_sessions.keep(order, left.transcript, home) if goes_on else ""
        asks = completion.verdict is Verdict.ASKS and session
        asked = claude_sessions.question_of(order, stream.result) if asks else None
        if completion.verdict is Verdict.ASKS and asked is None:
            completion = replace(completion, verdict=Verdict.INCOMPLETE, why=Why.BROKE_OFF)
        prices = model_prices(self._settings.of_model(order.model).prices)
        usage = charged(stream.usage(base.spent), ending.counted, prices)
        return RunResult(
            completion=completion,
            text=stream.text,
            usage=usage,
            agent_session=session,
            tool_calls=stream.tool_calls,
            interruption=asked,
        )


def _clearing(home: Path) -> Callable[[], None]:
    return functools.partial(shutil.rmtree, home, ignore_errors=True)
