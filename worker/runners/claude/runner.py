"""The Claude Code CLI as a runner: one process per run, its verdict from evidence (docs/claude-cli.md).

Why not its SDK: that starts the same program, but hands it our whole environment, knows no process group, and needs
seconds to cancel.
"""

from __future__ import annotations

import functools
import shutil
from pathlib import Path

from api_client.contract.errors import SettingsError
from api_client.contract.settings import Settings, load
from worker.files.workspace import RESPONSE, written_files
from worker.runners.base import Completion, Emit, ErrorKind, Order, RunResult, Stop, Verdict, config_error
from worker.runners.claude import cli_sessions as claude_sessions
from worker.runners.claude import completion_gate as claude_gate
from worker.runners.claude import hooks as claude_hooks
from worker.runners.claude.cli_command import arguments, binds, environment, find_program, prepare
from worker.runners.claude.cli_prompt import prompt_for
from worker.runners.claude.cli_sessions import Base
from worker.runners.claude.cli_stream import ClaudeStream
from worker.runners.claude.completion_gate import Evidence
from worker.runners.guard import processes
from worker.runners.guard.launch import Launch, run
from worker.runners.guard.processes import Processes
from worker.runners.guard.supervision import Ending, stopped

#: Shorter delays are the CLI's own back-off, no wish of the service; in seconds.
_LEAST_RETRY_AFTER = 2.0


class ClaudeCliRunner:
    """Runs ``claude -p`` once. The model may stand after ``:`` in the model's runner: ``claude_cli:opus``."""

    name = "claude_cli"

    def __init__(self, agents: Processes | None = None, settings: Settings | None = None) -> None:
        self._agents = agents or processes.shared()
        self._given = settings

    @functools.cached_property
    def _settings(self) -> Settings:
        return self._given or load()

    def run(self, order: Order, emit: Emit, stop: Stop) -> RunResult:
        """Run the agent once. Every failure of it is a verdict; a missing program is a configuration error."""
        try:
            program = find_program(self._settings)
        except SettingsError as error:
            return config_error(str(error))
        home = order.workdir / claude_sessions.TRANSCRIPTS / order.directory.name
        try:
            return self._run(program, home, order, emit, stop)
        finally:
            shutil.rmtree(home, ignore_errors=True)  # what is worth keeping was copied; the rest may be large

    def _run(self, program: str, home: Path, order: Order, emit: Emit, stop: Stop) -> RunResult:
        base, session, stream = claude_sessions.base_of(order), claude_sessions.session_of(order), ClaudeStream()
        try:
            settings_file = prepare(order, home, self._settings)
        except OSError as error:
            reason = f"the run's folders could not be made: {error}"
            return RunResult(completion=Completion(verdict=Verdict.ERROR, kind=ErrorKind.TRANSIENT, reason=reason))
        launch = Launch(
            argv=[program, *arguments(self._settings, order, settings_file, session, base)],
            env=environment(self._settings, home),
            stdin=prompt_for(order.prompt, order.messages, knows=base.knows),
            binds=binds(self._settings, order, Path(program), settings_file, base),
            box=self._settings.box,
            wanted=True,
        )
        ending = run(self._agents, launch, order, stop, emit, stream.take_line)
        return self._conclude(order, ending, stream, base, session, home, emit)

    def _conclude(
        self, order: Order, ending: Ending, stream: ClaudeStream, base: Base, session: str, home: Path, emit: Emit
    ) -> RunResult:
        """The verdict, the answer, and the agent session to continue from."""
        facts = {**ending.evidence, "retries": stream.retries, "continued": base.knows}
        if stream.skipped:
            facts["skipped_lines"] = stream.skipped
        usage = stream.usage(base.spent)
        if completion := stopped(ending, order, facts):
            return RunResult(completion=completion, text=stream.text, usage=usage)
        marks = claude_hooks.read_marks(order.directory)
        stop_mark = marks.get(claude_hooks.STOP, claude_hooks.Mark())
        answer = written_files(order.directory).get(RESPONSE, "").strip()
        text = answer or stream.text or ("" if stream.result else stop_mark.message)
        evidence = Evidence(
            run=order.mark,
            session=session,
            exit_code=ending.exit.code,
            stderr=ending.stderr,
            marks=marks,
            result=stream.result,
            error=stream.error,
            text=text,
            retry_after=stream.retry_after if stream.retry_after >= _LEAST_RETRY_AFTER else 0.0,
        )
        completion = claude_gate.judge(evidence, facts)
        if completion.kind is ErrorKind.SESSION_LOST:
            claude_sessions.forget(base)
        if completion.verdict is not Verdict.COMPLETE:
            return RunResult(completion=completion, text=text, usage=usage)
        for event in stream.replace(text):
            emit(event)
        kept = claude_sessions.keep(order, session, stop_mark.transcript, home)
        return RunResult(completion=completion, text=text, usage=usage, agent_session=session if kept else "")
