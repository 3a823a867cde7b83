"""Collect what a run of the Claude CLI left: its answer file, its standard output, or its transcript."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from worker.files.workspace import RESPONSE, written_files
from worker.runners.base import Order
from worker.runners.claude.answer_text import cleaned, ends_with, longest, trimmed
from worker.runners.claude.cli_sessions import Base
from worker.runners.claude.cli_stream import ClaudeStream
from worker.runners.claude.cli_transcript import NotReadable, RecordedRun, content_of, recorded
from worker.runners.claude.command import before
from worker.runners.claude.completion_gate import Evidence
from worker.runners.claude.hooks import END, START, STOP, Mark, obstacle, read_marks
from worker.runners.guard.supervision import Ending

#: Shorter delays are the CLI's own back-off, not requested by the service; in seconds.
_LEAST_RETRY_AFTER = 2.0
_REQUIRED = {START, STOP, END}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRemains:
    """The answer that a run left, with its source and the marks of its hooks.

    Attributes:
        text: the answer, or its longest known beginning.
        origin: ``file``, ``output`` or ``transcript``.
        missing: why the text may be incomplete; empty if complete.
        stop_reason: why the model stopped, if the transcript was read.
    """

    text: str
    origin: str
    missing: str = ""
    stop_reason: str = ""
    marks: Mapping[str, Mark] = field(default_factory=dict)

    @property
    def transcript(self) -> str:
        """The path of the run's transcript, as reported to the hooks."""
        return next((mark.transcript for mark in reversed([*self.marks.values()]) if mark.transcript), "")


def left_by(order: Order, session: str, prompt: bytes, base: Base, home: Path, stream: ClaudeStream) -> RunRemains:
    """Find the answer of a run in its answer file, its standard output or its transcript."""
    marks = read_marks(order.directory)
    if answer := written_files(order.directory).get(RESPONSE, "").strip():
        return RunRemains(text=answer, origin="file", marks=marks)
    stop = marks.get(STOP, Mark())
    if stream.whole and ends_with(stream.text, stop.message):
        return RunRemains(text=stream.text, origin="output", marks=marks)
    left = RunRemains(text=stream.text, origin="output", marks=marks)
    if order.interruption:  # without a prompt, the run's part of the transcript cannot be found
        return RunRemains(
            text=stream.text, origin="output", missing="standard output did not bring it whole", marks=marks
        )
    try:
        found = recorded(content_of(left.transcript, session, home), session, prompt, before(base))
    except (OSError, ValueError, NotReadable) as error:
        missing = f"standard output did not bring it whole, and {error}"
        return RunRemains(text=stream.text, origin="output", missing=missing, marks=marks)
    if problem := problem_of(found, marks, stream):
        text = longest(stream.text, found.text)
        origin = "output" if text == stream.text else "transcript"
        return RunRemains(text=text, origin=origin, missing=problem, stop_reason=found.stop_reason, marks=marks)
    return RunRemains(text=found.text, origin="transcript", stop_reason=found.stop_reason, marks=marks)


def problem_of(found: RecordedRun, marks: Mapping[str, Mark], stream: ClaudeStream) -> str:
    """Return which part of the answer a transcript lacks, compared with the Stop hook and the result."""
    if STOP not in marks or found.lacks(marks[STOP].message):
        return "the transcript does not end with the last message that the Stop hook heard"
    # Not only at its end: standard output may have closed between two results.
    if trimmed(cleaned(stream.result.get("result"))) not in found.text:
        return "the transcript does not hold the result on standard output"
    return ""


def evidence_of(
    order: Order, run: str, session: str, ending: Ending, stream: ClaudeStream, left: RunRemains, *, lives: bool = False
) -> Evidence:
    """Collect a run's evidence for the completion gate."""
    asked = max(stream.retry_after, stream.resets_at - time.time() if stream.resets_at else 0.0)
    return Evidence(
        run=run,
        session=session,
        exit_code=None if lives else ending.exit.code,
        stderr=ending.stderr,
        marks=left.marks,
        result=stream.result,
        error=stream.error,
        text=left.text,
        missing=left.missing,
        stop_reason=left.stop_reason,
        unwritable="" if lives or left.marks.keys() >= _REQUIRED else obstacle(order.directory),
        retry_after=asked if asked >= _LEAST_RETRY_AFTER else 0.0,
        lives=lives,
    )
