"""Formats a turn's events for the terminal: ``turns turn watch``, ``turns submit --watch`` and ``turns demo``."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable
from datetime import datetime
from typing import NamedTuple, TextIO

import click

from api_client.contract import event_kinds
from api_client.contract import events as kinds
from api_client.contract.decision import SHOW_COMMAND
from api_client.contract.events import Event
from api_client.contract.hand_overs import describe_hand_over, is_hand_over
from api_client.contract.interruption import Interruption
from api_client.contract.issue import ValidationIssue
from api_client.contract.turn_error import TurnError
from worker.cli.output import fit_line, strip_control

GOOD, BAD, WARN, DIM, BOLD, PLAIN = "green", "red", "yellow", "dim", "bold", ""


class Line(NamedTuple):
    """A line of terminal output with its style: colours, ``bold`` or ``dim``.

    ``detail`` marks a continuation line.
    """

    text: str
    style: str = PLAIN
    detail: bool = False


def describe_event(event: Event) -> list[Line]:
    """Return terminal lines that describe an event. Answer pieces and unknown events have no lines."""
    match event.body:
        case event_kinds.UnknownEvent():
            return []
        case event_kinds.LogReset(reason=reason):
            return [Line(f"from the start again: {fit_line(reason)}", WARN)]
        case body if isinstance(body, kinds.OfTurn):
            return _describe_turn_event(body)
        case body:
            return _describe_attempt_event(body)


def format_issues(issues: Iterable[ValidationIssue]) -> list[Line]:
    """Return terminal lines for validation issues, each with code, place, message, validator and fix."""
    lines = []
    for issue in issues:
        by = f"  ({fit_line(issue.validator)})" if issue.validator else ""
        text = f"{fit_line(issue.code)}  {_format_place(issue)}{fit_line(issue.message)}{by}"
        lines.append(Line(text, BAD if issue.is_error else WARN, detail=True))
        if issue.fix_hint:
            lines.append(Line(f"  -> {fit_line(issue.fix_hint)}", DIM, detail=True))
    return lines


def _format_place(issue: ValidationIssue) -> str:
    file, line = fit_line(issue.file), issue.line
    if not file or (not line and file in issue.message):
        return ""
    return f"{file}:{line}: " if line else f"{file}: "


def _describe_turn_event(body: kinds.OfTurn) -> list[Line]:
    match body:
        case event_kinds.TurnQueued(position=ahead):
            return [Line(f"queued, {_count_noun(ahead, 'turn')} of this session before it" if ahead else "queued")]
        case event_kinds.TurnRetrying():
            return _describe_retry(body)
        case event_kinds.TurnFallback():
            codes = ", ".join(map(fit_line, body.codes))
            return [Line(f"fallback on the best answer{': ' + codes if codes else ''}", WARN)]
        case event_kinds.TurnMended():
            return _describe_repair(body)
        case event_kinds.TurnEscalated():
            to = "a person" if body.stage == 2 else f"model {fit_line(body.model)}"
            return [Line(f"escalated to {to}", WARN), *format_issues(body.issues)]
        case event_kinds.TurnSuspended():
            asked = body.interruption or Interruption(kind="none")
            said = f"waits for a decision, {asked.wait_seconds:g} s at most, then {asked.silence}"
            hint = Line(f"{SHOW_COMMAND} {fit_line(body.turn_id)}", DIM, detail=True)
            return [Line(said, f"{BOLD} {WARN}"), hint]
        case event_kinds.TurnDecided():
            note = f": {fit_line(body.note)}" if body.note else ""
            who = " for ".join(filter(None, [body.by, body.for_]))
            return [Line(f"{fit_line(who)} decided: {fit_line(body.kind)}{note}", BOLD)]
        case event_kinds.HoldEvent():
            return [Line(body.describe_for_terminal(fit_line), WARN if any(body.BAR) else PLAIN)]
        case event_kinds.TurnStopping():
            return [Line(f"stopping: {fit_line(body.reason)}", WARN)]
        case event_kinds.TurnFinished():
            return _describe_end(body)


def _describe_attempt_event(body: kinds.OfAttempt) -> list[Line]:
    match body:
        case event_kinds.AttemptStarted():
            by = f" on {fit_line(body.worker)}" if body.worker else ""
            return [
                Line(
                    f"attempt {body.attempt}{_limit_suffix(body.max_attempts)} started{by}, delivery {body.delivery}",
                    BOLD,
                )
            ]
        case event_kinds.AttemptOutput():
            return []
        case event_kinds.AttemptReset():
            return [Line(f"the agent begins again: {fit_line(body.reason)}", DIM)]
        case event_kinds.AttemptTool():
            return [Line(f"tool {fit_line(body.name)} {fit_line(body.detail)}", DIM)]
        case event_kinds.AttemptNote():
            return [Line(fit_line(body.text), DIM)]
        case event_kinds.AttemptCompleted():
            verdict, reason = fit_line(body.verdict), fit_line(body.reason)
            style = PLAIN if verdict == "complete" else WARN
            return [Line(f"attempt {body.attempt} {verdict}{': ' + reason if reason else ''}", style)]
        case event_kinds.AttemptAccepted():
            return [Line(f"attempt {body.attempt} accepted", GOOD), *format_issues(body.issues)]
        case event_kinds.AttemptRejected():
            return [Line(f"attempt {body.attempt} rejected", BAD), *format_issues(body.issues)]
        case event_kinds.AttemptLost():
            what = (
                describe_hand_over(body.during)
                if is_hand_over(body.during)
                else f"worker lost in delivery {body.delivery}"
            )
            lost = f"attempt {body.attempt}: {what}, its draft is taken back"
            return [Line(lost, WARN)]
        case event_kinds.GateChecked() | event_kinds.VerifierStarted() | event_kinds.VerifierJudged():
            return _describe_phase_event(body)


def _describe_phase_event(
    body: event_kinds.GateChecked | event_kinds.VerifierStarted | event_kinds.VerifierJudged,
) -> list[Line]:
    match body:
        case event_kinds.GateChecked():
            said = fit_line(body.skipped) or ("passed" if body.passed else "failed")
            style = DIM if body.skipped else GOOD if body.passed else BAD
            return [Line(f"gate {fit_line(body.gate)}: {said}", style), *format_issues(body.issues)]
        case event_kinds.VerifierStarted():
            return [Line(f"verifier started, model {fit_line(body.model)}")]
        case event_kinds.VerifierJudged(success=True):
            return [Line("verifier: accepted", GOOD)]
        case event_kinds.VerifierJudged():
            errors = [Line(fit_line(error), BAD, detail=True) for error in body.errors]
            return [Line(f"verifier: not verified ({fit_line(body.ground)})", BAD), *errors]


def _limit_suffix(max_attempts: int) -> str:
    return f"/{max_attempts}" if max_attempts else ""


def _describe_retry(body: event_kinds.TurnRetrying) -> list[Line]:
    wait = f" in {body.delay_seconds:g} s" if body.delay_seconds else ""
    reason = f" (reason: {fit_line(body.reason)})" if body.reason else ""
    if body.model:
        return [Line(f"model {fit_line(body.model)} takes over attempt {body.attempt}", WARN)]
    head = Line(f"asking again{wait}: attempt {body.attempt}{_limit_suffix(body.max_attempts)}{reason}", WARN)
    feedback = [line for line in strip_control(body.feedback).splitlines() if line.strip()]
    return [head, *(Line(f"| {fit_line(line)}", DIM, detail=True) for line in feedback)]


def _describe_repair(body: event_kinds.TurnMended) -> list[Line]:
    source = f" ({fit_line(body.step_source)})" if body.step_source else ""
    step = f", step {fit_line(body.step)}{source}" if body.step else ""
    changes = [Line(fit_line(change), DIM, detail=True) for change in body.changes]
    return [Line(f"fallback changed the answer{step}", WARN), *changes]


def _describe_end(body: event_kinds.TurnFinished) -> list[Line]:
    counts = f"{_count_noun(body.attempts, 'attempt')}, {_count_noun(body.deliveries, 'delivery', 'deliveries')}"
    head = Line(f"{fit_line(body.outcome)}  ({counts})", f"{BOLD} {GOOD if body.success else BAD}")
    return [head, *(Line(text, BAD, detail=True) for text in format_error(body.error))]


def format_error(error: TurnError | None) -> list[str]:
    """Return the lines of text that describe a turn's error, or no lines without an error."""
    if error is None:
        return []
    lines = [fit_line(line) for line in strip_control(error.message or error.code).splitlines() if line.strip()]
    reason = fit_line(error.reason, 300)
    return [*lines, reason] if reason and not any(reason in line for line in lines) else lines


def _count_noun(number: int, one: str, many: str = "") -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"


def _current_activity(body: kinds.Body) -> str | None:
    match body:
        case event_kinds.TurnQueued():
            return "waiting for a worker"
        case event_kinds.AttemptStarted():
            return f"attempt {body.attempt}{_limit_suffix(body.max_attempts)} running"
        case event_kinds.AttemptCompleted():
            return f"attempt {body.attempt} being checked"
        case event_kinds.AttemptLost():
            return "waiting for another worker"
        case event_kinds.TurnRetrying():
            return f"attempt {body.attempt}{_limit_suffix(body.max_attempts)} waiting for a worker"
        case event_kinds.TurnFallback():
            return "repairing the answer"
        case event_kinds.TurnStopping():
            return "stopping"
        case event_kinds.TurnFinished():
            return ""
        case _:
            return None


class Timeline:
    """Writes the events of a turn to the terminal, each with time of day and number.

    On a terminal, lines are coloured unless NO_COLOR is set, and a counter shows the agent's progress.
    """

    def __init__(self, stream: TextIO | None = None, *, indent: str = "") -> None:
        self._stream = stream or sys.stdout
        self._indent = indent
        self._live = self._stream.isatty() and os.environ.get("TERM") != "dumb"
        self._written = 0
        self._counting = False
        self._doing, self._since = "", 0.0
        self._details_seen: set[str] = set()

    def show_event(self, event: Event) -> None:
        """Write an event to the terminal. A piece of the answer only updates the progress counter."""
        body = event.body
        if isinstance(body, event_kinds.AttemptOutput):
            self._written += len(body.text)
            self.show_progress()
            return
        if isinstance(body, event_kinds.AttemptStarted | event_kinds.AttemptReset | event_kinds.LogReset):
            self._written = 0
            self._details_seen.clear()
        if (doing := _current_activity(body)) is not None:
            self._doing, self._since = doing, event.at
        for line in self._new_lines(event):
            head = " " * 15 if line.detail else f"{datetime.fromtimestamp(event.at):%H:%M:%S}  {f'#{event.seq}':<5}"
            self.write_line(Line(f"{self._indent}{head}{line.text}", line.style))

    def _new_lines(self, event: Event) -> list[Line]:
        lines = describe_event(event)
        if isinstance(event.body, event_kinds.AttemptRejected | event_kinds.TurnEscalated):
            lines = [line for line in lines if not line.detail or line.text not in self._details_seen]
        self._details_seen.update(line.text for line in lines if line.detail)
        return lines

    def write_line(self, line: Line) -> None:
        self._clear_progress()
        self._stream.write(f"{style_line(line) if self._live else line.text}\n")
        self._stream.flush()

    def show_progress(self) -> None:
        """Show the current activity and its duration on a line that the next event overwrites."""
        if self._live and self._doing:
            self._clear_progress()
            wrote = f", {self._written} characters" if self._written else ""
            seconds = max(0.0, time.time() - self._since)
            self._stream.write(f"{self._indent}{' ' * 15}{self._doing} for {seconds:.0f} s{wrote}")
            self._stream.flush()
            self._counting = True

    def _clear_progress(self) -> None:
        if self._counting:
            self._stream.write("\r\x1b[K")
            self._counting = False


def style_line(line: Line) -> str:
    """Return the text of a line in its terminal colours, or plain if NO_COLOR is set."""
    if os.environ.get("NO_COLOR"):
        return line.text
    words = line.style.split()
    colour = next((word for word in words if word not in {BOLD, DIM}), None)
    return click.style(line.text, fg=colour, bold=BOLD in words or None, dim=DIM in words or None)
