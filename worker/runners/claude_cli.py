"""The Claude Code CLI as a runner: one process per run, its verdict from evidence (docs/claude-cli.md).

Why not its SDK: that starts the same program, but hands it our whole environment, knows no process group, and needs
seconds to cancel.
"""

from __future__ import annotations

import functools
import os
import shutil
from pathlib import Path

from api_client.contract.errors import SettingsError
from api_client.contract.failpoints import reach
from api_client.contract.settings import Settings, load
from worker.consultant.workspace import RESPONSE, written_files
from worker.runners import claude_gate, claude_hooks, claude_sessions, processes
from worker.runners.base import Completion, Emit, ErrorKind, Order, RunResult, Stop, Verdict
from worker.runners.claude_gate import Evidence
from worker.runners.claude_prompt import prompt_for
from worker.runners.claude_sessions import Base
from worker.runners.claude_stream import ClaudeStream
from worker.runners.processes import Processes
from worker.runners.scripted import config_error, mark_of
from worker.runners.supervision import Ending, LimitReached, Supervision, stopped
from worker.runners.transcript import MAX_ANSWER, AnswerTooLong

#: The tools of a run that may only read.
READING_TOOLS = ("Read", "Glob", "Grep")
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

        def hear(line: bytes) -> None:
            try:
                for event in stream.take_line(line):
                    emit(event)
            except AnswerTooLong as error:
                raise LimitReached(f"an answer of more than {MAX_ANSWER} characters") from error

        try:
            settings_file = prepare(order, home, self._settings)
            agent = self._agents.spawn(
                [program, *arguments(self._settings, order, settings_file, session, base)],
                mark=mark_of(order),
                env=environment(self._settings, home),
                cwd=order.directory,
                stdin=prompt_for(order.prompt, order.messages, knows=base.knows),
                lease_ends=stop.lease_ends,
            )
        except OSError as error:
            reason = f"the agent could not be started: {error}"
            return RunResult(completion=Completion(verdict=Verdict.ERROR, kind=ErrorKind.TRANSIENT, reason=reason))
        reach("B6")
        ending = Supervision(agent, order, stop, hear).run()
        reach("B8")
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
            run=mark_of(order),
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


def find_program(settings: Settings) -> str:
    """The path of the CLI.

    Raises:
        SettingsError: there is none.
    """
    found = shutil.which(str(Path(settings.claude_path).expanduser()))
    if found is None:
        raise SettingsError([f"HELIX_CLAUDE_PATH={settings.claude_path!r}: no such program; see docs/claude-cli.md"])
    return str(Path(found).absolute())


def environment(settings: Settings, home: Path) -> dict[str, str]:
    """The agent's environment, built from scratch: what the worker knows is none of its business."""
    env = {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": str(home),
        "LANG": "C.UTF-8",
        "TZ": os.environ.get("TZ", ""),
        "TMPDIR": str(home / "tmp"),
        "DISABLE_AUTOUPDATER": "1",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "CLAUDE_CODE_DISABLE_AUTO_MEMORY": "1",
        # "@/etc/passwd" in a message would put that file into the request, without asking anybody.
        "CLAUDE_CODE_DISABLE_FILE_MENTIONS": "1",
        # A run ends with its answer; nothing goes on in the background.
        "CLAUDE_CODE_DISABLE_BACKGROUND_TASKS": "1",
        # Retries are the queue's: there they cost no slot, and are seen.
        "CLAUDE_CODE_MAX_RETRIES": "1",
        "ANTHROPIC_BASE_URL": settings.claude_api_url,
        _key_name(settings.claude_api_key): settings.claude_api_key,
    }
    return {name: value for name, value in env.items() if value}


def _key_name(key: str) -> str:
    """A subscription's token (``claude setup-token``) and an API key have names of their own."""
    return "CLAUDE_CODE_OAUTH_TOKEN" if key.startswith("sk-ant-oat") else "ANTHROPIC_API_KEY"


def arguments(settings: Settings, order: Order, settings_file: Path, session: str, base: Base) -> list[str]:
    """The command line, without the program. The prompt is on standard input: an argument may hold 128 kB only."""
    found = ["-p", "--output-format", "stream-json", "--verbose", "--include-partial-messages"]
    # Settings of the user, here our empty HOME, and ours: what an agent writes into its folder is not honoured.
    found += ["--setting-sources", "user", "--settings", str(settings_file), "--strict-mcp-config"]
    # What is not allowed outright is denied: nobody is there to ask.
    mode = "dontAsk" if order.read_only else settings.claude_permission_mode
    tools = READING_TOOLS if order.read_only else settings.claude_tools
    found += ["--permission-mode", mode, "--tools", ",".join(tools)]
    if model := order.option or settings.claude_model:
        found += ["--model", model]
    if base.transcript is not None:
        found += ["--resume", str(base.transcript), "--fork-session"]
    return [*found, "--session-id", session]


def prepare(order: Order, home: Path, settings: Settings) -> Path:
    """Make the run's HOME with the session's CLAUDE.md, the folder for marks, and the settings file; returns that file.

    HOME and settings lie outside the folder the agent works in.

    Raises:
        OSError: they cannot be written.
    """
    marks = order.directory / "marks"
    for folder in (marks, home / ".claude", home / "tmp"):
        folder.mkdir(parents=True)
    memory = order.workdir / "CLAUDE.md"
    if memory.is_file() and not memory.is_symlink():
        shutil.copyfile(memory, home / ".claude" / "CLAUDE.md")
    path = home / "helix-settings.json"
    own = [order.workdir / name for name in ("context", "input", "feedback.md")]
    content = claude_hooks.settings(
        marks,
        readable=[order.directory] if order.read_only else [*claude_hooks.readable_entries(settings.root), *own],
        protected=[marks, home],
        allowed=() if order.read_only else settings.claude_allowed_tools,
    )
    path.write_text(content, encoding="utf-8")
    return path
