"""The runner of the Claude CLI: one process per run, judged by evidence (docs/claude-cli.md)."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from api_client.contract.completion import ErrorKind, IncompleteReason, Verdict
from api_client.contract.errors import SettingsError
from api_client.contract.settings import Settings
from worker.files import recording
from worker.files.folder_trees import remove_tree
from worker.files.safe_io import SHORT_OF
from worker.runners.agent_sessions import agent_session_id, home_folder
from worker.runners.base import Emit, Order, RunResult, Stop, config_error, not_begun
from worker.runners.claude import cli_launch as claude_sessions
from worker.runners.claude import cli_sessions, exchange, hooks, spare_agent, warm_agent
from worker.runners.claude import completion_gate as claude_gate
from worker.runners.claude.claude_models import model_prices
from worker.runners.claude.cli_launch import read_instructions
from worker.runners.claude.cli_program import find_program
from worker.runners.claude.cli_sessions import BaseSession
from worker.runners.claude.cli_stream import ClaudeStream
from worker.runners.claude.run_leftovers import RunLeftovers, build_evidence, collect_leftovers
from worker.runners.observed_calls import check_observed_calls
from worker.runners.pricing import compute_usage
from worker.runners.sandbox.bubblewrap import SandboxError
from worker.runners.sandbox.process_runner import PreparedRun, ProcessRunner, RunReader
from worker.runners.sandbox.supervision import RunEnding, explain_own_stop
from worker.runners.sent_input import SentInput
from worker.runners.warm import agent_lifecycle, idle_agents


class ClaudeCliRunner(ProcessRunner):
    """Runs the Claude CLI as an agent. Its model follows the colon in settings such as ``claude_cli:opus``."""

    name = "claude_cli"

    async def run_async(self, order: Order, emit: Emit, stop: Stop) -> RunResult:
        """Run the agent once, in the session's idle process if possible, and return the result."""
        limits = agent_lifecycle.WarmLimits.from_settings(self._settings)
        if not (order.owner and limits.seconds):
            return await super().run_async(order, emit, stop)
        return await idle_agents.shared_idle_agents().run_message(self, limits, order, emit, stop)

    async def run_alone(self, order: Order, emit: Emit, stop: Stop) -> RunResult:
        """Run the agent once in a new process that ends with the run, and return the result."""
        return await super().run_async(order, emit, stop)

    def compute_launch_key(self, order: Order) -> str:
        """Return a digest of the options that are fixed when a process starts, or "" if no process can be kept."""
        settings = self._settings.for_model(order.model)
        try:
            return warm_agent.compute_launch_key(settings, find_program(settings), order)
        except (SettingsError, OSError):
            return ""  # a run alone reports the reason

    def adopt(self, order: Order) -> RunResult | None:
        found = recording.read_recording(order.directory)
        files = exchange.read_process_files(found)
        if found is None or files is None:
            return super().adopt(order)
        prices = model_prices(self._settings.for_model(order.model).prices)
        return self._accept_adopted(order, lambda: exchange.adopt_message(order, files, found, prices))

    def open_agent(self, order: Order, launch_key: str, stop: Stop) -> warm_agent.ClaudeAgent | RunResult:
        """Start an agent process for this run's session and return it, or return an error result. May block."""
        settings = self._settings.for_model(order.model)
        return warm_agent.open_agent(self._agents, settings, find_program(settings), order, launch_key, stop)

    def compute_spare_key(self, order: Order) -> str:
        """Return a digest of the options that a spare process and the run must have in common."""
        settings = self._settings.for_model(order.model)
        try:
            return spare_agent.compute_spare_key(settings, find_program(settings), order)
        except (SettingsError, OSError, SandboxError):
            return ""  # a cold start reports the reason

    def list_wanted_spares(self, since: float) -> list[tuple[float, Order]]:
        """Return the kinds of spare process requested after ``since``: the time of the request, and a sample run."""
        try:
            return list(spare_agent.list_wanted_spares(self._settings, since))
        except OSError:
            return []

    def open_spare(self, order: Order, part: str, until: float) -> spare_agent.ClaudeSpare | None:
        """Start a spare process for similar runs. Return None if that is impossible. May block."""
        settings = self._settings.for_model(order.model)
        try:
            return spare_agent.open_spare(self._agents, settings, find_program(settings), order, part, until)
        except SettingsError:
            return None

    def prepare_run(self, order: Order) -> PreparedRun | RunResult:
        """Prepare the run's folders and command. Return an error result if that fails, for example without the CLI."""
        settings = self._settings.for_model(order.model)
        try:
            program = find_program(settings)
        except SettingsError as error:
            return config_error(str(error))
        home = home_folder(order)
        clear = _home_remover(home)
        try:
            return self._build_play(settings, program, home, order)
        except OSError as error:
            clear()
            return not_begun(f"the run's folders could not be made: {error}", host=error.errno in SHORT_OF)
        except BaseException:
            clear()
            raise

    def read_back(self, order: Order) -> RunReader:
        home = home_folder(order)
        return self._build_reader(order, home, cli_sessions.find_base(order))

    def _build_reader(self, order: Order, home: Path, base: BaseSession) -> RunReader:
        session, stream = agent_session_id(order), ClaudeStream(order.interruption)
        prompt = exchange.build_message_prompt(order, base)

        input_text = {"role": "user", "content": prompt.decode("utf-8", "replace")}
        sent = SentInput(system=read_instructions(home), messages=(input_text,), continues=base.knows)

        def conclude(ending: RunEnding, emit: Emit) -> RunResult:
            left = collect_leftovers(order, session, prompt, base, home, stream)
            return replace(self._conclude_run(order, ending, stream, left, base, home, emit), sent=sent)

        def finished() -> bool:
            return bool(stream.result) and hooks.has_ended(order.directory)

        return RunReader(take_line=stream.take_line, conclude=conclude, clear=_home_remover(home), finished=finished)

    def _build_play(self, settings: Settings, program: str, home: Path, order: Order) -> PreparedRun:
        base = cli_sessions.find_base(order)
        claude_sessions.prepare_files(order, home, settings)
        base = claude_sessions.adapt_base(order, base, home)
        reading = self._build_reader(order, home, base)
        prompt = exchange.build_message_prompt(order, base)
        launch = claude_sessions.build_launch(settings, program, order, home, agent_session_id(order), base, prompt)
        return reading.with_launch(launch)

    def _conclude_run(
        self,
        order: Order,
        ending: RunEnding,
        stream: ClaudeStream,
        left: RunLeftovers,
        base: BaseSession,
        home: Path,
        emit: Emit,
    ) -> RunResult:
        facts = {**ending.evidence, "retries": stream.retries, "continued": base.knows, "text_from": left.origin}
        if stream.skipped:
            facts["skipped_lines"] = stream.skipped
        stop = explain_own_stop(ending, order, facts)
        evidence = build_evidence(
            order, order.process_tag, agent_session_id(order), ending, stream, left, lives=ending.finished
        )
        completion = check_observed_calls(
            stop or claude_gate.judge_run(evidence, facts), ending.observed_calls, answer=left.text
        )
        if completion.kind is ErrorKind.SESSION_LOST:
            cli_sessions.discard_base(base)
        if completion.verdict is not Verdict.CANCELLED:
            for event in stream.replace_answer(left.text, f"the answer is in the {left.origin}"):
                emit(event)
        goes_on = completion.verdict in {Verdict.COMPLETE, Verdict.ASKS}
        session = cli_sessions.keep_transcript(order, left.transcript, home) if goes_on else ""
        asks = completion.verdict is Verdict.ASKS and session
        asked = claude_sessions.find_deferred_question(order, stream.result) if asks else None
        if completion.verdict is Verdict.ASKS and asked is None:
            completion = replace(completion, verdict=Verdict.INCOMPLETE, why=IncompleteReason.BROKE_OFF)
        prices = model_prices(self._settings.for_model(order.model).prices)
        usage = compute_usage(stream.report_usage(base.spent), ending.counted_tokens, prices)
        return RunResult(
            completion=completion,
            text=stream.text,
            usage=usage,
            agent_session=session,
            tool_calls=stream.tool_calls,
            interruption=asked,
        )


def _home_remover(home: Path) -> Callable[[], None]:
    return functools.partial(remove_tree, home, ignore_errors=True)
