"""An event of a turn: its place in the log, and its wire form. What the kinds say is in ``event_kinds``.

Every event has a ``seq`` that counts 1, 2, 3, ... per turn without a gap, and is written to the turn's log by the
same Lua command that changes the turn. The wire form is one JSON object:
``{"seq": int, "epoch": str, "at": int (ms), "kind": str, "data": {...}}``. ``docs/events.md`` says it for people.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from typing import Any, cast

from api_client.contract.event_kinds import Body, LogReset, TurnFinished, body_of

#: The kind of an event that stands in no log; see ``LogReset``.
RESET = LogReset.KIND


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
        from there writes later. An event that is in the log as it was stands behind the same ones as it did.
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
        """What it says, typed: match on it. Read once; many readers of one stream ask for it."""
        if self._body is None:
            object.__setattr__(self, "_body", body_of(self.kind, self.data))
        return cast("Body", self._body)

    def to_dict(self) -> dict[str, Any]:
        """The wire form."""
        return {"seq": self.seq, "epoch": self.epoch, "at": self.at_ms, "kind": self.kind, "data": self.data}

    @classmethod
    def decode(cls, wire: str | bytes) -> Event:
        """Read the wire form.

        Raises:
            ValueError: not an event.
        """
        try:
            raw = json.loads(wire)
            return cls(
                seq=int(raw["seq"]), epoch=raw["epoch"], at=raw["at"] / 1000, kind=raw["kind"], data=dict(raw["data"])
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"not an event: {wire[:80]!r}") from error

    @classmethod
    def decode_entry(cls, entry: str | bytes) -> list[Event]:
        """The events of one command, as the log and the bell carry them: one a line.

        Raises:
            ValueError: one is not an event.
        """
        text = entry.decode() if isinstance(entry, bytes) else entry
        return [cls.decode(line) for line in text.split("\n")]


def reset(reason: str) -> Event:
    """Tells a reader that all it has is void; see ``LogReset``. It has no number and no id."""
    return Event(seq=0, epoch="", at=time.time(), kind=RESET, data={"reason": reason})


def read_event_id(text: str) -> tuple[int, str, int]:
    """Split an event id into sequence number, epoch, and time in milliseconds: 0 in an id of an earlier version.

    Raises:
        ValueError: not an event id.
    """
    seq, _, rest = text.partition("-")
    epoch, dash, at = rest.partition("-")
    numbers = [seq, at] if dash else [seq]
    if not (all(_is_number(number) for number in numbers) and epoch.isascii() and epoch.isalnum()):
        raise ValueError(f"not an event id: {text[:80]!r}")
    return int(seq), epoch, int(at or 0)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 15
