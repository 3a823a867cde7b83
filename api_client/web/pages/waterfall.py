"""Converts a turn's events to rows of bars on a time axis."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from api_client.contract import event_kinds
from api_client.contract import events as kinds
from api_client.contract.catalogue import collect_declarations
from api_client.contract.events import Event
from api_client.contract.hand_overs import describe_hand_over, is_hand_over
from api_client.contract.issue import error_codes

KINDS = {
    "queue": "waits for a worker",
    **dict(kind.BAR for kind in collect_declarations("HOLD_EVENTS").values() if any(kind.BAR)),
    "run": "the agent works",
    "lost": "lost with its worker",
    "handed": "handed over by its worker",
    "validate": "is checked",
    "repair": "repaired by code",
    "person": "waits for a person",
}
#: In per cent; a narrower bar would be invisible.
_MIN_WIDTH = 0.35
_STEPS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60, 120, 300, 600, 1800, 3600, 7200, 21_600, 86_400, 604_800)


@dataclass(frozen=True, slots=True)
class Bar:
    """A period on a time axis, in seconds since the turn began. ``is_open`` marks a period that has not ended."""

    kind: str
    start: float
    end: float
    is_open: bool = False

    @property
    def seconds(self) -> float:
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class WaterfallRow:
    """A row of a turn's time chart, for one run of an attempt or for the repair.

    ``attempt`` is the attempt's number, 0 for the repair and the inbox. ``tool_calls`` has the start of each tool call,
    in seconds since the turn began, and its name. ``success`` is None for neither success nor failure.
    """

    label: str
    attempt: int = 0
    bars: tuple[Bar, ...] = ()
    tool_calls: tuple[tuple[float, str], ...] = ()
    result: str = ""
    success: bool | None = None


@dataclass(slots=True)
class _WaterfallBuilder:
    began_at: float
    rows: list[WaterfallRow] = field(default_factory=list)
    open_kind: str = ""
    open_since: float = 0.0

    def start_row(self, label: str, attempt: int = 0) -> None:
        """Begin a new row of the chart, unless the last row has the same label."""
        if not self.rows or self.rows[-1].label != label:
            self.rows.append(WaterfallRow(label, attempt))

    def add_tool_call(self, at: float, name: str) -> None:
        calls = (*self.rows[-1].tool_calls, (at - self.began_at, name))
        self.rows[-1] = replace(self.rows[-1], tool_calls=calls)

    def open_bar(self, kind: str, at: float) -> None:
        self.open_kind, self.open_since = kind, at

    def close_bar(self, at: float, *, kind: str = "", going_on: bool = False) -> None:
        if self.open_kind:
            bar = Bar(
                kind or self.open_kind,
                self.open_since - self.began_at,
                max(self.open_since, at) - self.began_at,
                going_on,
            )
            self.rows[-1] = replace(self.rows[-1], bars=(*self.rows[-1].bars, bar))
        self.open_kind = ""

    def set_result(self, said: str, *, good: bool | None) -> None:
        self.rows[-1] = replace(self.rows[-1], result=said, success=good)


def build_waterfall(events: Iterable[Event], now: float) -> list[WaterfallRow]:
    """Return the rows of a turn's time chart in order. Unfinished periods last until ``now`` (epoch seconds)."""
    walk: _WaterfallBuilder | None = None
    for event in events:
        if walk is None:
            walk = _WaterfallBuilder(event.at)
            walk.start_row("Attempt 1", 1)
            walk.open_bar("queue", event.at)
        _add_event(walk, event.body, event.at)
    if walk is None:
        return []
    walk.close_bar(now, going_on=True)
    return [row for row in walk.rows if row.bars]


def _add_event(walk: _WaterfallBuilder, body: kinds.Body, at: float) -> None:
    match body:
        case event_kinds.AttemptStarted():
            walk.close_bar(at)
            walk.open_bar("run", at)
        case event_kinds.AttemptTool():
            walk.add_tool_call(at, f"{body.name} {body.detail}".strip())
        case event_kinds.AttemptCompleted():
            walk.close_bar(at)
            if body.verdict == "complete":
                walk.open_bar("validate", at)
            else:
                walk.set_result(body.reason or body.verdict, good=False)
        case event_kinds.AttemptLost():
            planned = is_hand_over(body.during)
            walk.close_bar(at, kind="handed" if planned else "lost")
            walk.set_result(
                describe_hand_over(body.during) if planned else "worker lost", good=None if planned else False
            )
            walk.start_row(f"Attempt {body.attempt}, delivered again", body.attempt)
            walk.open_bar("validate" if body.during == "validating" else "queue", at)
        case event_kinds.AttemptAccepted():
            walk.close_bar(at)
            walk.set_result("accepted", good=True)
        case event_kinds.AttemptRejected():
            walk.close_bar(at)
            walk.set_result(", ".join(error_codes(body.issues)) or "rejected", good=False)
        case _:
            _add_turn_event(walk, body, at)


def _add_turn_event(walk: _WaterfallBuilder, body: kinds.Body, at: float) -> None:
    match body:
        case event_kinds.TurnRetrying():
            walk.close_bar(at)
            walk.start_row(f"Attempt {body.attempt}{f', model {body.model}' if body.model else ''}", body.attempt)
            walk.open_bar("queue", at)
        case event_kinds.TurnFallback():
            walk.close_bar(at)
            walk.start_row("Repair")
            walk.open_bar("repair", at)
        case event_kinds.TurnMended():
            walk.close_bar(at)
            walk.set_result(f"{len(body.changes)} changed", good=None)
        case event_kinds.TurnSuspended():
            walk.close_bar(at)
            if body.interruption and walk.rows[-1].result == body.interruption.kind:  # a question is no failure
                walk.set_result(f"waits: {body.interruption.kind.replace('_', ' ')}", good=None)
            walk.start_row("Inbox")
            walk.open_bar("person", at)
        case event_kinds.HoldEvent():
            walk.close_bar(at)
            walk.open_bar(body.BAR[0] or "queue", at)
        case event_kinds.TurnDecided():
            walk.close_bar(at)
            walk.set_result(f"{body.kind} by {body.by}", good=None)
        case event_kinds.TurnFinished():
            walk.close_bar(at)
            if not walk.rows[-1].result:
                walk.set_result(body.outcome.replace("_", " "), good=body.success)
        case _:  # takes no time
            pass


@dataclass(frozen=True, slots=True)
class TimeScale:
    """Converts seconds on a chart's time axis to percentages of the chart's width."""

    seconds: float

    def at(self, seconds: float) -> str:
        """Return the horizontal position of a time as a CSS percentage."""
        return f"{100 * seconds / self.seconds:.2f}%"

    def width(self, bar: Bar) -> str:
        """Return the width of a bar as a CSS percentage that is large enough to be visible."""
        return f"{max(_MIN_WIDTH, 100 * bar.seconds / self.seconds):.2f}%"

    @property
    def ticks(self) -> list[float]:
        """Return the times to label on the axis in seconds, at most seven."""
        step = next((step for step in _STEPS if self.seconds / step <= 7), _STEPS[-1])
        return [step * n for n in range(1, int(self.seconds / step) + 1) if step * n < 0.97 * self.seconds]
