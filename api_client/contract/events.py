"""An event of a turn: its place in the log and its wire form."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from typing import Any, TypeAlias, cast, get_args

from api_client.contract.catalogue import collect_declarations
from api_client.contract.event_kinds import (
    AttemptAccepted,
    AttemptCompleted,
    AttemptLost,
    AttemptNote,
    AttemptOutput,
    AttemptRejected,
    AttemptReset,
    AttemptStarted,
    AttemptTool,
    GateChecked,
    HoldEvent,
    LogReset,
    TurnDecided,
    TurnEscalated,
    TurnFallback,
    TurnFinished,
    TurnMended,
    TurnQueued,
    TurnRetrying,
    TurnStopping,
    TurnSuspended,
    UnknownEvent,
    VerifierJudged,
    VerifierStarted,
)
from api_client.contract.interruption import Interruption
from api_client.contract.issue import issues_to_dicts, read_issues
from api_client.contract.json_readers import READ
from api_client.contract.turn import Turn
from api_client.contract.turn_error import TurnError, error_to_dict

OfAttempt: TypeAlias = (
    AttemptStarted | AttemptOutput | AttemptReset | AttemptTool | AttemptNote | AttemptCompleted | GateChecked
    | VerifierStarted | VerifierJudged | AttemptAccepted | AttemptRejected | AttemptLost
)  # fmt: skip
OfTurn: TypeAlias = (
    TurnQueued | TurnRetrying | TurnFallback | TurnMended | TurnEscalated | TurnSuspended | TurnDecided | HoldEvent
    | TurnStopping | TurnFinished
)  # fmt: skip
Body: TypeAlias = OfTurn | OfAttempt | LogReset | UnknownEvent


RESET = LogReset.KIND
_EVENT_ID = re.compile(r"(\d{1,15})-([a-zA-Z0-9]+)(?:-(\d{1,15}))?", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """An entry in the event log of a turn.

    ``seq`` counts from 1 without gaps. ``epoch`` is a nonce of the record: another epoch means another history. ``at``
    is in seconds since the epoch, by the store's clock. ``body`` has the typed content.
    """

    seq: int
    epoch: str
    at: float
    kind: str
    data: dict[str, Any]
    _body: Body | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def event_id(self) -> str:
        """Return the event's id for the HTTP header ``Last-Event-ID``."""
        return f"{self.seq}-{self.epoch}-{self.at_ms}"

    @property
    def at_ms(self) -> int:
        """Return the event's time in milliseconds since the epoch."""
        return round(self.at * 1000)

    @property
    def final(self) -> bool:
        """Return True if this is the turn's last event."""
        return self.kind == TurnFinished.KIND

    @property
    def body(self) -> Body:
        """Return the event's content as an instance of its event class, such as ``TurnQueued``."""
        if self._body is None:
            object.__setattr__(self, "_body", body_of(self.kind, self.data))
        return cast("Body", self._body)

    def to_dict(self) -> dict[str, Any]:
        return {"seq": self.seq, "epoch": self.epoch, "at": self.at_ms, "kind": self.kind, "data": self.data}

    @classmethod
    def decode(cls, wire: str | bytes) -> Event:
        """Create an event from its JSON text. Raises ``ValueError`` if the text is not an event."""
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
        """Parse a log entry with one event per line, skipping unreadable lines."""
        found, text = list[Event](), entry.decode("utf-8", "replace") if isinstance(entry, bytes) else entry
        for line in text.split("\n"):
            with suppress(ValueError):
                found.append(cls.decode(line))
        return found


def reset_event(reason: str) -> Event:
    """Build the event that tells a reader to discard all earlier events of the turn."""
    return Event(seq=0, epoch="", at=time.time(), kind=RESET, data={"reason": reason})


def describe_end(turn: Turn) -> TurnFinished:
    """Return what the last event of a finished turn says, from the turn's record."""
    return TurnFinished(
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


def final_event(turn: Turn) -> Event:
    """Build a finished turn's last event from its record, for readers who cannot read the event log."""
    data = data_of(describe_end(turn))
    return Event(seq=turn.seq, epoch=turn.epoch, at=turn.finished_at, kind=TurnFinished.KIND, data=data)


def read_event_id(text: str) -> tuple[int, str, int]:
    """Split an event id into the event's number, its epoch, and its time in milliseconds (0 if missing).

    Raises ``ValueError`` if the text is not an event id.
    """
    if not (found := _EVENT_ID.fullmatch(text)):
        raise ValueError(f"not an event id: {text[:80]!r}")
    return int(found[1]), found[2], int(found[3] or 0)


def body_of(kind: str, data: Mapping[str, Any]) -> Body:
    """Convert an event's data to the class of its kind, or to ``UnknownEvent`` for an unknown kind or version."""
    found = _CLASSES.get(kind)
    if found is None or data.get("version", 1) != found.VERSION:
        return UnknownEvent(KIND=kind, data=data)
    given = dict(_EMPTY[kind])
    for wire, name, read, _ in _WIRES[kind]:
        if wire in data:
            given[name] = read(data[wire])
    body: Body = found(**given)
    return body


def data_of(body: Body) -> dict[str, Any]:
    """Convert the content of an event to a JSON-ready dictionary."""
    if isinstance(body, UnknownEvent):
        return dict(body.data)
    data: dict[str, Any] = {"version": body.VERSION} if body.VERSION != 1 else {}
    for wire, name, _, default in _WIRES[body.KIND]:
        value = getattr(body, name)
        if value != default:
            data[wire] = value
    for wire, written in _TYPED.get(body.KIND, ()):
        data[wire] = written(data[wire])
    return data


def _read_interruption(value: object) -> Interruption | None:
    try:
        return Interruption.from_dict(value) if isinstance(value, Mapping) else None
    except (TypeError, ValueError):  # written by another version
        return None


#: Readers and writers of field types that are no plain JSON values.
_READ = {
    **READ,
    "tuple[ValidationIssue, ...]": read_issues,
    "TurnError | None": TurnError.from_dict,
    "Interruption | None": _read_interruption,
}
_WRITTEN: dict[str, Callable[[Any], Any]] = {
    "tuple[ValidationIssue, ...]": issues_to_dicts,
    "TurnError | None": error_to_dict,
    "Interruption | None": lambda asked: asked.to_dict() if asked else {},
}
_CLASSES: dict[str, type[Any]] = {
    kind.KIND: kind for kind in get_args(Body) if kind not in {UnknownEvent, HoldEvent}
} | collect_declarations("HOLD_EVENTS")
#: Kind -> its fields: name on the wire, name in the class, reader, default (MISSING: always written).
_WIRES: dict[str, list[tuple[str, str, Callable[[Any], Any], Any]]] = {
    name: [(each.name.rstrip("_"), each.name, _READ[str(each.type)], each.default) for each in fields(kind)]
    for name, kind in _CLASSES.items()
}
_EMPTY = {kind: {name: read(None) for _, name, read, _ in wires} for kind, wires in _WIRES.items()}
#: Kind -> its fields that need a writer: name on the wire, writer.
_TYPED = {
    name: typed
    for name, kind in _CLASSES.items()
    if (typed := [(each.name, _WRITTEN[str(each.type)]) for each in fields(kind) if str(each.type) in _WRITTEN])
}
