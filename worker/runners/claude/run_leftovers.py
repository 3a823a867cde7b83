"""Collects what a run of the Claude CLI left: its answer file, its standard output, or its transcript."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from worker.files.workspace import RESPONSE, read_accepted_files
from worker.runners.base import Order
from worker.runners.claude.answer_text import clean_text, ends_with, longest_text, trim_text
from worker.runners.claude.cli_launch import read_base
from worker.runners.claude.cli_sessions import BaseSession
from worker.runners.claude.cli_stream import ClaudeStream
from worker.runners.claude.cli_transcript import RecordedRun, UnreadableTranscript, extract_run, read_transcript
from worker.runners.claude.completion_gate import RunEvidence
from worker.runners.claude.hooks import END, START, STOP, HookMark, find_write_error, read_marks
from worker.runners.sandbox.supervision import RunEnding

#: Delays shorter than this, in seconds, are the CLI's own back-off and not requested by the service.
_LEAST_RETRY_AFTER = 2.0
_REQUIRED = {START, STOP, END}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLeftovers:
    """The answer that a run left behind, with its source and the reports of the CLI's hooks.

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
    marks: Mapping[str, HookMark] = field(default_factory=dict)

    @property
    def transcript(self) -> str:
        """Return the path of the run's transcript, as the CLI reported it to its hooks."""
        return next((mark.transcript for mark in reversed([*self.marks.values()]) if mark.transcript), "")


def collect_leftovers(
    order: Order, session: str, prompt: bytes, base: BaseSession, home: Path, stream: ClaudeStream
) -> RunLeftovers:
    """Find the answer of a run in its answer file, its standard output or its transcript."""
    marks = read_marks(order.directory)
    if answer := read_accepted_files(order.directory).get(RESPONSE, "").strip():
        return RunLeftovers(text=answer, origin="file", marks=marks)
    stop = marks.get(STOP, HookMark())
    if stream.is_whole and ends_with(stream.text, stop.message):
        return RunLeftovers(text=stream.text, origin="output", marks=marks)
    left = RunLeftovers(text=stream.text, origin="output", marks=marks)
    if order.interruption:  # without a prompt, the run's part of the transcript cannot be found
        return RunLeftovers(
            text=stream.text, origin="output", missing="standard output did not bring it whole", marks=marks
        )
    try:
        found = extract_run(read_transcript(left.transcript, session, home), session, prompt, read_base(base))
    except (OSError, ValueError, UnreadableTranscript) as error:
        missing = f"standard output did not bring it whole, and {error}"
        return RunLeftovers(text=stream.text, origin="output", missing=missing, marks=marks)
    if problem := find_transcript_gap(found, marks, stream):
        text = longest_text(stream.text, found.text)
        origin = "output" if text == stream.text else "transcript"
        return RunLeftovers(text=text, origin=origin, missing=problem, stop_reason=found.stop_reason, marks=marks)
    return RunLeftovers(text=found.text, origin="transcript", stop_reason=found.stop_reason, marks=marks)


def find_transcript_gap(found: RecordedRun, marks: Mapping[str, HookMark], stream: ClaudeStream) -> str:
    """Describe the part of the answer that the transcript lacks, or return an empty string if nothing is missing."""
    if STOP not in marks or found.lacks_message(marks[STOP].message):
        return "the transcript does not end with the last message that the Stop hook heard"
    # Not only at its end: standard output may have closed between two results.
    if trim_text(clean_text(stream.result.get("result"))) not in found.text:
        return "the transcript does not hold the result on standard output"
    return ""


def build_evidence(
    order: Order,
    run: str,
    session: str,
    ending: RunEnding,
    stream: ClaudeStream,
    left: RunLeftovers,
    *,
    lives: bool = False,
) -> RunEvidence:
    """Collect the facts from which the completion gate derives the verdict on a run."""
    asked = max(stream.retry_after, stream.resets_at - time.time() if stream.resets_at else 0.0)
    return RunEvidence(
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
        unwritable="" if lives or left.marks.keys() >= _REQUIRED else find_write_error(order.directory),
        retry_after=asked if asked >= _LEAST_RETRY_AFTER else 0.0,
        lives=lives,
    )
