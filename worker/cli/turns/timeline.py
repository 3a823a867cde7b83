"""A turn's events as lines of a terminal: ``turns watch``, ``turns submit --watch`` and ``turns demo`` use it.

``describe`` is pure: event in, lines out. ``Timeline`` writes them, in colour when somebody watches.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any, NamedTuple, TextIO

import click

from api_client.contract.events import RESET, Event
from worker.cli.output import one_line, safe

GOOD, BAD, WARN, DIM, BOLD, PLAIN = "green", "red", "yellow", "dim", "bold", ""


class Line(NamedTuple):
    """A line, its style (a colour, ``bold``, ``dim``, or several), and whether it continues the line before it."""

    text: str
    style: str = PLAIN
    detail: bool = False


def describe(event: Event) -> list[Line]:
    """What an event says, in one line and its details; nothing for a piece of the answer or an unknown kind."""
    describer = _DESCRIBERS.get(event.kind)
    return describer(event.data) if describer else []


def issue_lines(issues: Iterable[dict[str, Any]]) -> list[Line]:
    """An issue each: code, place, message and validator; below it what would repair it."""
    lines = []
    for issue in issues:
        style = WARN if issue.get("severity") == "warning" else BAD
        by = f"  ({one_line(issue['validator'])})" if issue.get("validator") else ""
        text = f"{one_line(issue.get('code', ''))}  {_place(issue)}{one_line(issue.get('message', ''))}{by}"
        lines.append(Line(text, style, detail=True))
        if issue.get("fix_hint"):
            lines.append(Line(f"  -> {one_line(issue['fix_hint'])}", DIM, detail=True))
    return lines


def _place(issue: dict[str, Any]) -> str:
    """Where an issue of a file is, unless its message says so."""
    file, line = one_line(issue.get("file") or ""), issue.get("line") or 0
    if not file or (not line and file in str(issue.get("message", ""))):
        return ""
    return f"{file}:{line}: " if line else f"{file}: "


def _queued(data: dict[str, Any]) -> list[Line]:
    ahead = data.get("position", 0)
    return [Line(f"queued, {_count(ahead, 'turn')} of this session before it" if ahead else "queued")]


def _started(data: dict[str, Any]) -> list[Line]:
    of = f"/{data['max_attempts']}" if data.get("max_attempts") else ""
    by = f" on {one_line(data['worker'])}" if data.get("worker") else ""
    return [Line(f"attempt {data.get('attempt')}{of} started{by}, delivery {data.get('delivery')}", BOLD)]


def _completed(data: dict[str, Any]) -> list[Line]:
    verdict, reason = one_line(data.get("verdict", "")), one_line(data.get("reason", ""))
    style = PLAIN if verdict == "complete" else WARN
    return [Line(f"attempt {data.get('attempt')} {verdict}{': ' + reason if reason else ''}", style)]


def _accepted(data: dict[str, Any]) -> list[Line]:
    return [Line(f"attempt {data.get('attempt')} accepted", GOOD), *issue_lines(data.get("issues", ()))]


def _rejected(data: dict[str, Any]) -> list[Line]:
    return [Line(f"attempt {data.get('attempt')} rejected", BAD), *issue_lines(data.get("issues", ()))]


def _lost(data: dict[str, Any]) -> list[Line]:
    text = f"attempt {data.get('attempt')}: worker lost in delivery {data.get('delivery')}, its draft is taken back"
    return [Line(text, WARN)]


def _retrying(data: dict[str, Any]) -> list[Line]:
    delay = data.get("delay_seconds") or 0
    wait = f" in {delay:g} s" if delay else ""
    of = f"/{data['max_attempts']}" if data.get("max_attempts") else ""
    reason = one_line(data.get("reason", ""))
    head = Line(f"asking again{wait}: attempt {data.get('attempt')}{of}{', ' + reason if reason else ''}", WARN)
    feedback = [line for line in safe(data.get("feedback", "")).splitlines() if line.strip()]
    return [head, *(Line(f"| {one_line(line)}", DIM, detail=True) for line in feedback)]


def _fallback(data: dict[str, Any]) -> list[Line]:
    codes = ", ".join(map(one_line, data.get("codes", ())))
    return [Line(f"fallback on the best answer{': ' + codes if codes else ''}", WARN)]


def _mended(data: dict[str, Any]) -> list[Line]:
    step = one_line(data.get("step", ""))
    source = f" ({one_line(data['step_source'])})" if data.get("step_source") else ""
    lines = [Line(f"fallback changed the answer{', step ' + step + source if step else ''}", WARN)]
    return lines + [Line(one_line(change), DIM, detail=True) for change in data.get("changes", ())]


def _gate(data: dict[str, Any]) -> list[Line]:
    gate, skipped = one_line(data.get("gate", "")), one_line(data.get("skipped", ""))
    said = skipped or ("passed" if data.get("passed") else "failed")
    style = DIM if skipped else GOOD if data.get("passed") else BAD
    return [Line(f"gate {gate}: {said}", style), *issue_lines(data.get("issues", ()))]


def _verified(data: dict[str, Any]) -> list[Line]:
    if data.get("success"):
        return [Line("verifier: accepted", GOOD)]
    errors = [Line(one_line(error), BAD, detail=True) for error in data.get("errors", ())]
    return [Line(f"verifier: not verified ({one_line(data.get('ground', ''))})", BAD), *errors]


def _escalated(data: dict[str, Any]) -> list[Line]:
    to = "a person" if data.get("stage") == 2 else f"model {one_line(data.get('model', ''))}"
    return [Line(f"escalated to {to}", WARN), *issue_lines(data.get("issues", ()))]


def _parked(data: dict[str, Any]) -> list[Line]:
    turn_id, default = one_line(data.get("turn_id", "")), one_line(data.get("default", ""))
    seconds = data.get("timeout_seconds") or 0
    head = Line(f"waits for a decision, {seconds:g} s at most, then {default}", f"{BOLD} {WARN}")
    return [head, Line(f"turns inbox show {turn_id}", DIM, detail=True)]


def _decided(data: dict[str, Any]) -> list[Line]:
    note = f": {one_line(data['note'])}" if data.get("note") else ""
    who = " for ".join(filter(None, [data.get("by", ""), data.get("for", "")]))
    return [Line(f"{one_line(who)} decided: {one_line(data.get('kind', ''))}{note}", BOLD)]


def _finished(data: dict[str, Any]) -> list[Line]:
    attempts, deliveries = data.get("attempts", 0), data.get("deliveries", 0)
    counts = f"{_count(attempts, 'attempt')}, {_count(deliveries, 'delivery', 'deliveries')}"
    style = f"{BOLD} {GOOD if data.get('success') else BAD}"
    lines = [Line(f"{one_line(data.get('outcome', ''))}  ({counts})", style)]
    return lines + [Line(text, BAD, detail=True) for text in error_lines(data.get("error") or {})]


def error_lines(error: dict[str, Any]) -> list[str]:
    """What a turn's error says, a line each."""
    message = error.get("message") or ", ".join(f"{key}: {value}" for key, value in error.items())
    return [one_line(line) for line in safe(message).splitlines() if line.strip()]


def _count(number: int, one: str, many: str = "") -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"


_DESCRIBERS: dict[str, Callable[[dict[str, Any]], list[Line]]] = {
    "turn.queued": _queued,
    "attempt.started": _started,
    RESET: lambda data: [Line(f"from the start again: {one_line(data.get('reason', ''))}", WARN)],
    "attempt.reset": lambda data: [Line(f"the agent begins again: {one_line(data.get('reason', ''))}", DIM)],
    "attempt.tool": lambda data: [
        Line(f"tool {one_line(data.get('name', ''))} {one_line(data.get('detail', ''))}", DIM)
    ],
    "attempt.note": lambda data: [Line(one_line(data.get("text", "")), DIM)],
    "attempt.completed": _completed,
    "attempt.accepted": _accepted,
    "attempt.rejected": _rejected,
    "attempt.lost": _lost,
    "turn.retrying": _retrying,
    "turn.fallback": _fallback,
    "turn.mended": _mended,
    "gate.checked": _gate,
    "verifier.started": lambda data: [Line(f"verifier started, model {one_line(data.get('model', ''))}")],
    "verifier.judged": _verified,
    "turn.escalated": _escalated,
    "turn.parked": _parked,
    "turn.decided": _decided,
    "turn.stopping": lambda data: [Line(f"stopping: {one_line(data.get('reason', ''))}", WARN)],
    "turn.finished": _finished,
}


#: Events whose issues were told before, by the gates or by the rejection.
_TELL_AGAIN = {"attempt.rejected", "turn.escalated"}

#: What goes on after an event, until the next of these.
_DOING = {
    "turn.queued": "waiting for a worker",
    "attempt.started": "attempt {attempt} running",
    "attempt.completed": "attempt {attempt} being judged",
    "attempt.lost": "waiting for another worker",
    "turn.retrying": "attempt {attempt} waiting for a worker",
    "turn.fallback": "repairing the answer",
    "turn.stopping": "stopping",
    "turn.finished": "",
}


class Timeline:
    """Writes the events of a turn, a line each: time of day, number, what happened.

    Colours only on a terminal and without NO_COLOR; there, too, a counter shows that the agent is writing.
    """

    def __init__(self, stream: TextIO | None = None, *, indent: str = "") -> None:
        self._stream = stream or sys.stdout
        self._indent = indent
        self._live = self._stream.isatty() and os.environ.get("TERM") != "dumb"
        self._written = 0
        self._counting = False
        self._doing, self._since = "", 0.0
        self._told: set[str] = set()

    def show(self, event: Event) -> None:
        """Write an event; a piece of the answer only moves the counter."""
        if event.kind == "attempt.output":
            self._written += len(event.data.get("text", ""))
            self.tick()
            return
        if event.kind in {"attempt.started", "attempt.reset", RESET}:
            self._written = 0
            self._told.clear()
        if event.kind in _DOING:
            of = f"/{event.data['max_attempts']}" if event.data.get("max_attempts") else ""
            self._doing, self._since = (
                _DOING[event.kind].format(attempt=f"{event.data.get('attempt', '')}{of}"),
                event.at,
            )
        for line in self._new(event):
            head = " " * 15 if line.detail else f"{datetime.fromtimestamp(event.at):%H:%M:%S}  {f'#{event.seq}':<5}"
            self.write(Line(f"{self._indent}{head}{line.text}", line.style))

    def _new(self, event: Event) -> list[Line]:
        """What an event says; issues that a gate of this attempt told, or its rejection, are not told again."""
        lines = describe(event)
        if event.kind in _TELL_AGAIN:
            lines = [line for line in lines if not line.detail or line.text not in self._told]
        self._told.update(line.text for line in lines if line.detail)
        return lines

    def write(self, line: Line) -> None:
        """Write a line of one's own among the events."""
        self._clear()
        self._stream.write(f"{styled(line) if self._live else line.text}\n")
        self._stream.flush()

    def tick(self) -> None:
        """Show what is going on and for how long, on a line of its own that the next event takes away."""
        if self._live and self._doing:
            self._clear()
            wrote = f", {self._written} characters" if self._written else ""
            seconds = max(0.0, time.time() - self._since)
            self._stream.write(f"{self._indent}{' ' * 15}{self._doing} for {seconds:.0f} s{wrote}")
            self._stream.flush()
            self._counting = True

    def _clear(self) -> None:
        if self._counting:
            self._stream.write("\r\x1b[K")
            self._counting = False


def styled(line: Line) -> str:
    """A line in its colours, unless NO_COLOR is set."""
    if os.environ.get("NO_COLOR"):
        return line.text
    words = line.style.split()
    colour = next((word for word in words if word not in {BOLD, DIM}), None)
    return click.style(line.text, fg=colour, bold=BOLD in words or None, dim=DIM in words or None)
