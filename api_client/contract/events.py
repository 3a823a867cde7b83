"""Events of a turn: their kinds, their places in the log, their wire form (docs/events.md).

Every event has a ``seq`` that counts 1, 2, 3, ... per turn without a gap, and is written to the turn's log by the Lua
command that changes the turn. On the wire: ``{"seq": int, "epoch": str, "at": int (ms), "kind": str, "data": {...}}``.
In ``data`` a field has its name (without an underscore at its end), and is left out when it has its default. A reader
gives what is missing, or of another type, the empty value of its type: another version may have written the log.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, TypeAlias, cast, get_args

from api_client.contract.declared import READ
from api_client.contract.issues import TurnError, ValidationIssue, error_data, issues_data, read_issues
from api_client.contract.tool_calls import ToolQuestion
from api_client.contract.turn import Turn

# The content of a turn's events: one frozen dataclass per kind. Their wire form is in ``events``. Workers and the
# store's Lua write events, relays and the command line read them. To add a kind: write its class here and add it to
# ``Body``; then ``make lint`` names every reader that must decide what to do with it.


class _Kind:
    """The base of all kinds: a name, and a version that is raised when a field changes its meaning or goes."""

    __slots__ = ()
    KIND: ClassVar[str]
    VERSION: ClassVar[int] = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnQueued(_Kind):
    """The turn is stored; ``position`` counts the turns of this session before it."""

    KIND = "turn.queued"
    position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptStarted(_Kind):
    """An agent starts."""

    KIND = "attempt.started"
    attempt: int
    delivery: int
    max_attempts: int
    worker: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptOutput(_Kind):
    """A piece of the answer, a draft until the attempt is accepted."""

    KIND = "attempt.output"
    attempt: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptReset(_Kind):
    """The draft of this attempt so far is void; the agent begins its text again."""

    KIND = "attempt.reset"
    attempt: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptTool(_Kind):
    """The agent uses a tool."""

    KIND = "attempt.tool"
    attempt: int
    name: str
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptNote(_Kind):
    """Something worth a line in the status."""

    KIND = "attempt.note"
    attempt: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptCompleted(_Kind):
    """The agent ended; ``usage``, when it was reported: input_tokens, output_tokens, cost_usd."""

    KIND = "attempt.completed"
    attempt: int
    verdict: str
    reason: str
    usage: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GateChecked(_Kind):
    """A gate of a phase was run; ``skipped`` is why not, or empty."""

    KIND = "gate.checked"
    attempt: int
    gate: str
    passed: bool
    skipped: str
    issues: tuple[ValidationIssue, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifierStarted(_Kind):
    """An independent agent judges the phase's output."""

    KIND = "verifier.started"
    attempt: int
    model: str


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifierJudged(_Kind):
    """The independent agent's verdict."""

    KIND = "verifier.judged"
    attempt: int
    success: bool
    ground: str
    errors: tuple[str, ...]
    checks_passed: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptAccepted(_Kind):
    """Every active validator accepts; ``issues`` are warnings."""

    KIND = "attempt.accepted"
    attempt: int
    issues: tuple[ValidationIssue, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRejected(_Kind):
    """Validators found errors; the draft is taken back."""

    KIND = "attempt.rejected"
    attempt: int
    issues: tuple[ValidationIssue, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptLost(_Kind):
    """The worker died, froze or handed the attempt over; the draft is taken back."""

    KIND = "attempt.lost"
    attempt: int
    delivery: int
    during: str
    silent_ms: int = 0
    usage: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRetrying(_Kind):
    """The agent is asked again, by ``reason``: rejected, incomplete, transient, decided, model (another ``model``)."""

    KIND = "turn.retrying"
    attempt: int
    max_attempts: int
    reason: str
    model: str = ""
    codes: tuple[str, ...]
    feedback: str
    goes_on: bool
    delay_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnFallback(_Kind):
    """A fallback is tried on the best answer."""

    KIND = "turn.fallback"
    attempt: int
    codes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnMended(_Kind):
    """The fallback changed the answer; ``fixed`` are the issues it repaired."""

    KIND = "turn.mended"
    attempt: int
    changes: tuple[str, ...]
    fixed: tuple[ValidationIssue, ...]
    step: str
    step_source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnEscalated(_Kind):
    """All attempts failed; ``stage`` 1 asks another ``model``, 2 a person."""

    KIND = "turn.escalated"
    attempt: int
    stage: int
    reason: str
    model: str = ""
    issues: tuple[ValidationIssue, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnParked(_Kind):
    """It waits in the inbox for a decision; ``default`` is that after the time-out, ``question`` a tool call."""

    KIND = "turn.parked"
    attempt: int
    turn_id: str
    reason: str
    timeout_seconds: float
    default: str
    question: dict[str, Any] | None = None

    @property
    def asked(self) -> ToolQuestion | None:
        """The tool call that a person is asked about; None where it waits for another decision."""
        return ToolQuestion.from_dict(self.question) if self.question else None


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnDecided(_Kind):
    """A person decided, or the time-out did."""

    KIND = "turn.decided"
    attempt: int
    kind: str
    by: str
    for_: str
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnPaused(_Kind):
    """A pause keeps it from starting: of a model, queue, key, owner; breaker, limit. ``until``: epoch seconds or 0."""

    KIND = "turn.paused"
    what: str
    reason: str
    until: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnResumed(_Kind):
    """The pause that held it back is over."""

    KIND = "turn.resumed"


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnStopping(_Kind):
    """The turn is asked to stop; its agent is being ended."""

    KIND = "turn.stopping"
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnFinished(_Kind):
    """The end, once; ``markers`` are the places of its step markers."""

    KIND = "turn.finished"
    outcome: str
    success: bool
    attempts: int
    deliveries: int
    response: str
    step: str
    step_source: str
    markers: list[Any] | None
    error: TurnError | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogReset(_Kind):
    """Is in no log: what this reader saw is void, and the log follows from its first event."""

    KIND = "log.reset"
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Unknown:
    """A kind, or a version of one, that a newer program wrote. A reader passes it over."""

    KIND: str
    data: Mapping[str, Any]


OfAttempt: TypeAlias = (
    AttemptStarted | AttemptOutput | AttemptReset | AttemptTool | AttemptNote | AttemptCompleted | GateChecked
    | VerifierStarted | VerifierJudged | AttemptAccepted | AttemptRejected | AttemptLost
)  # fmt: skip
OfTurn: TypeAlias = (
    TurnQueued | TurnRetrying | TurnFallback | TurnMended | TurnEscalated | TurnParked | TurnDecided | TurnPaused
    | TurnResumed | TurnStopping | TurnFinished
)  # fmt: skip
Body: TypeAlias = OfTurn | OfAttempt | LogReset | Unknown


#: The kind of an event that is in no log; see ``LogReset``.
RESET = LogReset.KIND
_EVENT_ID = re.compile(r"(\d{1,15})-([a-zA-Z0-9]+)(?:-(\d{1,15}))?", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One event of a turn.

    Attributes:
        seq: its number in the turn, from 1, without gaps.
        epoch: nonce of the record that wrote it; another epoch means another history.
        at: store time, seconds since the epoch.
        kind, data: what it says, as it is on the wire; readers in this program match on ``body``.
    """

    seq: int
    epoch: str
    at: float
    kind: str
    data: dict[str, Any]
    _body: Body | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def event_id(self) -> str:
        """The id for ``Last-Event-ID``: sequence number, epoch, and when it was written, in milliseconds.

        The time tells this event from another one in its place: a store that lost the end of its log and went on
        from there writes later. An event that is in the log as it was is behind the same ones as it did.
        """
        return f"{self.seq}-{self.epoch}-{self.at_ms}"

    @property
    def at_ms(self) -> int:
        """``at`` in milliseconds, as it is stored."""
        return round(self.at * 1000)

    @property
    def final(self) -> bool:
        """True for the one event after which nothing follows."""
        return self.kind == TurnFinished.KIND

    @property
    def body(self) -> Body:
        """Return what it says, typed: match on it. Read once; many readers of one stream ask for it."""
        if self._body is None:
            object.__setattr__(self, "_body", body_of(self.kind, self.data))
        return cast("Body", self._body)

    def to_dict(self) -> dict[str, Any]:
        """The wire form."""
        return {"seq": self.seq, "epoch": self.epoch, "at": self.at_ms, "kind": self.kind, "data": self.data}

    @classmethod
    def decode(cls, wire: str | bytes) -> Event:
        """Read the wire form. Raises ``ValueError``: not an event."""
        try:
            raw = json.loads(wire)
            return cls(
                seq=int(raw["seq"]),
                epoch=str(raw["epoch"]),
                at=raw["at"] / 1000,
                kind=str(raw["kind"]),
                data=dict(raw["data"]),
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"not an event: {wire[:80]!r}") from error

    @classmethod
    def decode_entry(cls, entry: str | bytes) -> list[Event]:
        """The events of one command, as the log and the bell carry them: one a line.

        A line that is not an event is left out: a newer version may have written it.
        """
        found, text = list[Event](), entry.decode("utf-8", "replace") if isinstance(entry, bytes) else entry
        for line in text.split("\n"):
            with suppress(ValueError):
                found.append(cls.decode(line))
        return found


def reset(reason: str) -> Event:
    """Tells a reader that all it has is void; see ``LogReset``. It has no number and no id."""
    return Event(seq=0, epoch="", at=time.time(), kind=RESET, data={"reason": reason})


def end_of(turn: Turn) -> Event:
    """A finished turn's last event, from its record: for a reader that cannot read the one in its log."""
    said = TurnFinished(
        outcome=turn.outcome or "",
        success=turn.success,
        attempts=turn.attempt,
        deliveries=turn.delivery,
        response=turn.response,
        step=turn.step,
        step_source=turn.step_source,
        markers=[list(span) for span in turn.markers],
        error=turn.error,
    )
    return Event(seq=turn.seq, epoch=turn.epoch, at=turn.finished_at, kind=TurnFinished.KIND, data=data_of(said))


def read_event_id(text: str) -> tuple[int, str, int]:
    """Split an event id into sequence number, epoch, and time in milliseconds: 0 in an id of an earlier version.

    Raises ``ValueError``: not an event id.
    """
    if not (found := _EVENT_ID.fullmatch(text)):
        raise ValueError(f"not an event id: {text[:80]!r}")
    return int(found[1]), found[2], int(found[3] or 0)


def body_of(kind: str, data: Mapping[str, Any]) -> Body:
    """The typed form of an event's kind and data; ``Unknown`` for what this version does not know."""
    found = _CLASSES.get(kind)
    if found is None or data.get("version", 1) != found.VERSION:
        return Unknown(KIND=kind, data=data)
    given = dict(_EMPTY[kind])
    for wire, name, read, _ in _WIRES[kind]:
        if wire in data:
            given[name] = read(data[wire])
    body: Body = found(**given)
    return body


def data_of(body: Body) -> dict[str, Any]:
    """The wire form of what an event says: a JSON-ready mapping, in the order of the fields."""
    if isinstance(body, Unknown):
        return dict(body.data)
    data: dict[str, Any] = {"version": body.VERSION} if body.VERSION != 1 else {}
    for wire, name, _, default in _WIRES[body.KIND]:
        value = getattr(body, name)
        if value != default:
            data[wire] = value
    for wire, written in _TYPED.get(body.KIND, ()):
        data[wire] = written(data[wire])
    return data


#: How the fields are read, and written, that are more than a plain JSON value.
_READ = {**READ, "tuple[ValidationIssue, ...]": read_issues, "TurnError | None": TurnError.from_dict}
_WRITTEN: dict[str, Callable[[Any], Any]] = {"tuple[ValidationIssue, ...]": issues_data, "TurnError | None": error_data}
_CLASSES: dict[str, type[Any]] = {kind.KIND: kind for kind in get_args(Body) if kind is not Unknown}
#: Of each kind its fields: name on the wire, name in the class, how it is read, default (MISSING: always written).
_WIRES: dict[str, list[tuple[str, str, Callable[[Any], Any], Any]]] = {
    name: [(each.name.rstrip("_"), each.name, _READ[str(each.type)], each.default) for each in fields(kind)]
    for name, kind in _CLASSES.items()
}
#: Of each kind what its fields have that are missing.
_EMPTY = {kind: {name: read(None) for _, name, read, _ in wires} for kind, wires in _WIRES.items()}
#: Of the kinds that have such fields: their names on the wire, and how they are written.
_TYPED = {
    name: typed
    for name, kind in _CLASSES.items()
    if (typed := [(each.name, _WRITTEN[str(each.type)]) for each in fields(kind) if str(each.type) in _WRITTEN])
}


#: kind -> what it says, for people. A reader must ignore kinds it does not know: new ones may be added.
KINDS = {
    name: f"{kind.__doc__} data: {', '.join(wire for wire, *_ in _WIRES[name])}".replace("``", "`")
    for name, kind in _CLASSES.items()
    if kind is not LogReset
}
