"""The Claude Code CLI as a runner: one process per run, its verdict from evidence (docs/claude-cli.md).

Why not its SDK: that starts the same program, but hands it our whole environment, knows no process group, and needs
seconds to cancel.
"""

from __future__ import annotations

import functools
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from api_client.contract.issues import SettingsError
from api_client.contract.settings import Settings
from worker.files.safe_io import SHORT_OF, opened, read
from worker.files.workspace import RESPONSE, written_files
from worker.runners.base import Emit, ErrorKind, Order, RunResult, Sent, Verdict, config_error, not_begun
from worker.runners.claude import command as claude_sessions
from worker.runners.claude import completion_gate as claude_gate
from worker.runners.claude import completion_gate as claude_hooks
from worker.runners.claude.cli_program import find_program
from worker.runners.claude.command import (
    Base,
    arguments,
    binds,
    cut_environment,
    environment,
    instructions,
    outbound,
    prepare,
    prompt_for,
)
from worker.runners.claude.completion_gate import STOP, Evidence, Mark, read_marks
from worker.runners.claude.output import (
    MAX_TRANSCRIPT,
    ClaudeStream,
    NotReadable,
    Recorded,
    cleaned,
    content_of,
    ends_with,
    longest,
    recorded,
    trimmed,
)
from worker.runners.guard.footprint import Bounds
from worker.runners.guard.launch import Launch, Play, ProcessRunner, Reading
from worker.runners.guard.supervision import Ending, stopped

# The rest of a run: the file it wrote, its standard output, or its own transcript; and the missing parts.
#
# Standard output counts only where each of its results was the end of the text before it. Where it closed early or a
# line of it was torn, the answer is read back from the transcript. Either must end with the message that the Stop
# hook heard.


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """The rest of a run.

    Attributes:
        text: the answer, or the longest beginning known of it. origin: ``file``, ``output`` or ``transcript``.
        missing: why something of it may be missing; empty when it is whole.
        stop_reason: why the model stopped, where the transcript was read. marks: what the hooks left, by event.
    """

    text: str
    origin: str
    missing: str = ""
    stop_reason: str = ""
    marks: Mapping[str, Mark] = field(default_factory=dict)

    @property
    def transcript(self) -> str:
        """The path of the run's transcript, as its hooks heard it; empty when none did."""
        return next((mark.transcript for mark in reversed([*self.marks.values()]) if mark.transcript), "")


def left_by(order: Order, session: str, prompt: bytes, base: Base, home: Path, stream: ClaudeStream) -> Left:
    """Return what a run left in its folder, on its standard output and in its transcript.

    Args:
        order: what was ordered.
        session: the run's agent session.
        prompt: what it got on standard input.
        base: what it continued from.
        home: its HOME.
        stream: what it wrote to standard output.
    """
    marks = read_marks(order.directory)
    if answer := written_files(order.directory).get(RESPONSE, "").strip():
        return Left(text=answer, origin="file", marks=marks)
    stop = marks.get(STOP, Mark())
    if stream.whole and ends_with(stream.text, stop.message):
        return Left(text=stream.text, origin="output", marks=marks)
    left = Left(text=stream.text, origin="output", marks=marks)
    try:
        found = recorded(content_of(left.transcript, session, home), session, prompt, _before(base))
    except (OSError, ValueError, NotReadable) as error:
        missing = f"standard output did not bring it whole, and {error}"
        return Left(text=stream.text, origin="output", missing=missing, marks=marks)
    if problem := _problem(found, marks, stream):
        text = longest(stream.text, found.text)
        origin = "output" if text == stream.text else "transcript"
        return Left(text=text, origin=origin, missing=problem, stop_reason=found.stop_reason, marks=marks)
    return Left(text=found.text, origin="transcript", stop_reason=found.stop_reason, marks=marks)


def _problem(found: Recorded, marks: Mapping[str, Mark], stream: ClaudeStream) -> str:
    if STOP not in marks or found.lacks(marks[STOP].message):
        return "the transcript does not end with the last message that the Stop hook heard"
    # Not at its end: standard output may have closed between two results.
    if trimmed(cleaned(stream.result.get("result"))) not in found.text:
        return "the transcript does not hold the result on standard output"
    return ""


def _before(base: Base) -> bytes:
    """The transcript a run continued from; it is still what it was."""
    if base.transcript is None:
        return b""
    with opened(base.transcript.parent) as folder:
        return read(base.transcript.name, folder, MAX_TRANSCRIPT)


#: Shorter delays are the CLI's own back-off, no wish of the service; in seconds.
_LEAST_RETRY_AFTER = 2.0
#: Hooks of every run that came to the end.
_REQUIRED = {claude_hooks.START, claude_hooks.STOP, claude_hooks.END}


class ClaudeCliRunner(ProcessRunner):
    """Runs ``claude -p`` once. The model may stand after ``:`` in the model's runner: ``claude_cli:opus``."""

    name = "claude_cli"

    def prepare(self, order: Order) -> Play | RunResult:
        """Make its folders and its command line ready; a missing program is a configuration error."""
        settings = self._settings.of_model(order.model)
        try:
            program = find_program(settings)
        except SettingsError as error:
            return config_error(str(error))
        home = order.workdir / claude_sessions.TRANSCRIPTS / order.directory.name
        clear = _clearing(home)
        try:
            return self._play(settings, program, home, order)
        except OSError as error:
            clear()
            return not_begun(f"the run's folders could not be made: {error}", host=error.errno in SHORT_OF)
        except BaseException:
            clear()
            raise

    def read_back(self, order: Order) -> Reading:
        """Return how a run that was prepared before is read."""
        home = order.workdir / claude_sessions.TRANSCRIPTS / order.directory.name
        return self._reading(order, home, claude_sessions.base_of(order))

    def _reading(self, order: Order, home: Path, base: Base) -> Reading:
        session, stream = claude_sessions.session_of(order), ClaudeStream()
        prompt = _prompt(order, base)

        input_text = {"role": "user", "content": prompt.decode("utf-8", "replace")}
        sent = Sent(system=instructions(home), messages=(input_text,), continues=base.knows)

        def conclude(ending: Ending, emit: Emit) -> RunResult:
            left = left_by(order, session, prompt, base, home, stream)
            return replace(self._conclude(order, ending, stream, left, base, home, emit), sent=sent)

        return Reading(take_line=stream.take_line, conclude=conclude, clear=_clearing(home))

    def _play(self, settings: Settings, program: str, home: Path, order: Order) -> Play:
        """The run. Raises ``OSError`` when its folders cannot be made."""
        base, session = claude_sessions.base_of(order), claude_sessions.session_of(order)
        settings_file = prepare(order, home, settings)
        reading = self._reading(order, home, base)
        launch = Launch(
            argv=[program, *arguments(settings, order, settings_file, session, base)],
            env=environment(settings, home),
            stdin=_prompt(order, base),
            binds=binds(settings, order, Path(program), settings_file, base),
            box=settings.box,
            wanted=True,
            bounds=Bounds.of(settings),
            writes=[home],
            outbound=outbound(settings),
            cut_env=cut_environment(settings),
        )
        return Play(launch=launch, take_line=reading.take_line, conclude=reading.conclude, clear=reading.clear)

    def _conclude(
        self, order: Order, ending: Ending, stream: ClaudeStream, left: Left, base: Base, home: Path, emit: Emit
    ) -> RunResult:
        """The verdict, the answer, and the agent session to continue from. The log agrees with the answer."""
        facts = {**ending.evidence, "retries": stream.retries, "continued": base.knows, "text_from": left.origin}
        if stream.skipped:
            facts["skipped_lines"] = stream.skipped
        stop = stopped(ending, order, facts)
        completion = stop or claude_gate.judge(_evidence(order, ending, stream, left), facts)
        if completion.kind is ErrorKind.SESSION_LOST:
            claude_sessions.forget(base)
        if completion.verdict is not Verdict.CANCELLED:
            for event in stream.replace(left.text, f"the answer is in the {left.origin}"):
                emit(event)
        session = claude_sessions.session_of(order)
        kept = completion.verdict is Verdict.COMPLETE and claude_sessions.keep(order, session, left.transcript, home)
        usage = stream.usage(base.spent)
        return RunResult(completion=completion, text=stream.text, usage=usage, agent_session=session if kept else "")


def _clearing(home: Path) -> Callable[[], None]:
    """Removes a run's HOME. What is worth keeping is copied; the rest may be large."""
    return functools.partial(shutil.rmtree, home, ignore_errors=True)


def _prompt(order: Order, base: Base) -> bytes:
    return prompt_for(order.prompt, order.messages, knows=base.knows, so_far=order.so_far, locale=order.locale)


def _evidence(order: Order, ending: Ending, stream: ClaudeStream, left: Left) -> Evidence:
    asked = max(stream.retry_after, stream.resets_at - time.time() if stream.resets_at else 0.0)
    return Evidence(
        run=order.mark,
        session=claude_sessions.session_of(order),
        exit_code=ending.exit.code,
        stderr=ending.stderr,
        marks=left.marks,
        result=stream.result,
        error=stream.error,
        text=left.text,
        missing=left.missing,
        stop_reason=left.stop_reason,
        unwritable="" if left.marks.keys() >= _REQUIRED else claude_hooks.obstacle(order.directory),
        retry_after=asked if asked >= _LEAST_RETRY_AFTER else 0.0,
    )
