"""Turn a turn's events into rows of bars on a time axis."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from api_client.contract import event_kinds
from api_client.contract import events as kinds
from api_client.contract.events import Event
from api_client.contract.hand_overs import handed_over, is_hand_over
from api_client.contract.issue import error_codes

#: Kinds of bars in the order of a turn's life -> meaning.
KINDS = {
    "queue": "waits for a worker",
    "pause": "is paused",
    "run": "the agent works",
    "lost": "lost with its worker",
    "handed": "handed over by its worker",
    "validate": "is judged",
    "repair": "repaired by code",
    "person": "waits for a person",
}
#: Least width of a bar, in per cent; a narrower bar would be invisible.
_NARROWEST = 0.35
#: Distances between ticks of the time axis, in seconds.
_STEPS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60, 120, 300, 600, 1800, 3600, 7200, 21_600, 86_400, 604_800)


@dataclass(frozen=True, slots=True)
class Bar:
    """A period on a time axis, in seconds since the turn began; ``open`` marks a period that has not ended."""

    kind: str
    start: float
    end: float
    open: bool = False

    @property
    def seconds(self) -> float:
        """Return the duration of the period in seconds."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class WaterfallRow:
    """A row of the time chart of a turn, which shows one run of an attempt or the repair.

    Attributes:
        said: how the row ended, in words.
        good: True for success, False for failure, None for neither.
    """

    label: str
    bars: tuple[Bar, ...] = ()
    said: str = ""
    good: bool | None = None


@dataclass(slots=True)
class _Walk:
    began: float
    rows: list[WaterfallRow] = field(default_factory=list)
    kind: str = ""
    since: float = 0.0

    def row(self, label: str) -> None:
        """Begin a new row of the chart, unless the last row has the same label."""
        if not self.rows or self.rows[-1].label != label:
            self.rows.append(WaterfallRow(label))

    def open(self, kind: str, at: float) -> None:
        self.kind, self.since = kind, at

    def close(self, at: float, *, kind: str = "", going_on: bool = False) -> None:
        if self.kind:
            bar = Bar(kind or self.kind, self.since - self.began, max(self.since, at) - self.began, going_on)
            self.rows[-1] = replace(self.rows[-1], bars=(*self.rows[-1].bars, bar))
        self.kind = ""

    def say(self, said: str, *, good: bool | None) -> None:
        self.rows[-1] = replace(self.rows[-1], said=said, good=good)


def waterfall(events: Iterable[Event], now: float) -> list[WaterfallRow]:
    """Return the rows of a turn's time chart in order; unfinished periods last until ``now`` (Unix time)."""
    walk: _Walk | None = None
    for event in events:
        if walk is None:
            walk = _Walk(event.at)
            walk.row("Attempt 1")
            walk.open("queue", event.at)
        _take(walk, event.body, event.at)
    if walk is None:
        return []
    walk.close(now, going_on=True)
    return [row for row in walk.rows if row.bars]


def _take(walk: _Walk, body: kinds.Body, at: float) -> None:
    match body:
        case event_kinds.AttemptStarted():
            walk.close(at)
            walk.open("run", at)
        case event_kinds.AttemptCompleted():
            walk.close(at)
            if body.verdict == "complete":
                walk.open("validate", at)
            else:
                walk.say(body.reason or body.verdict, good=False)
        case event_kinds.AttemptLost():
            planned = is_hand_over(body.during)
            walk.close(at, kind="handed" if planned else "lost")
            walk.say(handed_over(body.during) if planned else "worker lost", good=None if planned else False)
            walk.row(f"Attempt {body.attempt}, delivered again")
            walk.open("validate" if body.during == "validating" else "queue", at)
        case event_kinds.AttemptAccepted():
            walk.close(at)
            walk.say("accepted", good=True)
        case event_kinds.AttemptRejected():
            walk.close(at)
            walk.say(", ".join(error_codes(body.issues)) or "rejected", good=False)
        case _:
            _take_turn(walk, body, at)


def _take_turn(walk: _Walk, body: kinds.Body, at: float) -> None:
    match body:
        case event_kinds.TurnRetrying():
            walk.close(at)
            walk.row(f"Attempt {body.attempt}{f', model {body.model}' if body.model else ''}")
            walk.open("queue", at)
        case event_kinds.TurnFallback():
            walk.close(at)
            walk.row("Repair")
            walk.open("repair", at)
        case event_kinds.TurnMended():
            walk.close(at)
            walk.say(f"{len(body.changes)} changed", good=None)
        case event_kinds.TurnSuspended():
            walk.close(at)
            walk.row("Inbox")
            walk.open("person", at)
        case event_kinds.TurnPaused() | event_kinds.TurnResumed():
            walk.close(at)
            walk.open("pause" if isinstance(body, event_kinds.TurnPaused) else "queue", at)
        case event_kinds.TurnDecided():
            walk.close(at)
            walk.say(f"{body.kind} by {body.by}", good=None)
        case event_kinds.TurnFinished():
            walk.close(at)
            if not walk.rows[-1].said:
                walk.say(body.outcome.replace("_", " "), good=body.success)
        case _:  # takes no time
            pass


@dataclass(frozen=True, slots=True)
class Scale:
    """Converts seconds on the time axis of a chart to percentages of the chart's width."""

    seconds: float

    def at(self, seconds: float) -> str:
        """Return the horizontal position of a time as a CSS percentage."""
        return f"{100 * seconds / self.seconds:.2f}%"

    def width(self, bar: Bar) -> str:
        """Return the width of a bar as a CSS percentage, large enough to be visible."""
        return f"{max(_NARROWEST, 100 * bar.seconds / self.seconds):.2f}%"

    @property
    def ticks(self) -> list[float]:
        """Return the times that are labelled on the axis, at most seven, in seconds."""
        step = next((step for step in _STEPS if self.seconds / step <= 7), _STEPS[-1])
        return [step * n for n in range(1, int(self.seconds / step) + 1) if step * n < 0.97 * self.seconds]
