"""The events of a turn: one table, one wire form.

Every event has a ``seq`` that counts 1, 2, 3, ... per turn without a gap, and is written to the turn's log by the
same Lua command that changes the turn. The wire form is one JSON object:
``{"seq": int, "epoch": str, "at": int (ms), "kind": str, "data": {...}}``. ``docs/events.md`` is this table for people.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import Any

#: kind -> what it says. A reader must ignore kinds it does not know: new ones may be added.
KINDS = {
    "turn.queued": "The turn is stored. data: position (turns of this session before it)",
    "attempt.started": "An agent starts. data: attempt, delivery, max_attempts, worker",
    "attempt.output": "A piece of the answer, a draft until the attempt is accepted. data: attempt, text",
    "attempt.reset": "The draft of this attempt so far is void; the agent begins its text again. data: attempt, reason",
    "attempt.tool": "The agent uses a tool. data: attempt, name, detail",
    "attempt.note": "Something worth a line in the status. data: attempt, text",
    "attempt.completed": "The agent ended. data: attempt, verdict, reason, usage (tokens, cost)",
    "gate.checked": "A gate of a phase was run. data: attempt, gate, passed, skipped, issues",
    "verifier.started": "An independent agent judges the phase's output. data: attempt, model",
    "verifier.judged": "Its verdict. data: attempt, success, ground, errors, checks_passed",
    "attempt.accepted": "Every active validator accepts. data: attempt, issues (warnings)",
    "attempt.rejected": "Validators found errors; the draft is taken back. data: attempt, issues",
    "attempt.lost": "The worker died, froze, gave it back; its draft goes. data: attempt, delivery, during, silent_ms",
    "turn.retrying": "Asked again. data: attempt, max_attempts, reason, codes, feedback, goes_on, delay_seconds",
    "turn.fallback": "A fallback is tried on the best answer. data: attempt, codes",
    "turn.mended": "The fallback changed the answer. data: attempt, changes, step, step_source",
    "turn.escalated": "All attempts failed. data: attempt, stage (1 another model, 2 a person), reason, model, issues",
    "turn.parked": "It waits in the inbox for a decision. data: attempt, turn_id, reason, timeout_seconds, default",
    "turn.decided": "A person decided, or the time-out did. data: attempt, kind, by, for, note",
    "turn.stopping": "The turn is asked to stop; its agent is being ended. data: reason",
    "turn.finished": "The end, once. data: outcome, success, attempts, deliveries, response, markers, step, error",
}

#: After this kind nothing follows.
FINAL = "turn.finished"

#: Stands in no log: a reader is told so when the store no longer has what this reader saw. All it has is void, and
#: the log follows from the first event on.
RESET = "log.reset"


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One event of a turn.

    Attributes:
        seq: its number in the turn, from 1, without gaps.
        epoch: nonce of the record that wrote it; another epoch means another history.
        at: store time, seconds since the epoch.
        kind: a key of ``KINDS``.
        data: what the kind's line in ``KINDS`` lists.
    """

    seq: int
    epoch: str
    at: float
    kind: str
    data: dict[str, Any]

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
        return self.kind == FINAL

    def to_dict(self) -> dict[str, Any]:
        """The wire form."""
        return {"seq": self.seq, "epoch": self.epoch, "at": self.at_ms, "kind": self.kind, "data": self.data}

    @classmethod
    def decode(cls, wire: str | bytes) -> Event:
        """Read the wire form.

        Raises:
            ValueError: this is no event.
        """
        try:
            raw = json.loads(wire)
            return cls(
                seq=int(raw["seq"]), epoch=raw["epoch"], at=raw["at"] / 1000, kind=raw["kind"], data=dict(raw["data"])
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"not an event: {wire[:80]!r}") from error


def reset(reason: str) -> Event:
    """Tells a reader that all it has is void; see ``RESET``. It has no number and no id."""
    return Event(seq=0, epoch="", at=time.time(), kind=RESET, data={"reason": reason})


def read_event_id(text: str) -> tuple[int, str, int]:
    """Split an event id into sequence number, epoch, and time in milliseconds: 0 in an id of an earlier version.

    Raises:
        ValueError: this is no event id.
    """
    seq, _, rest = text.partition("-")
    epoch, dash, at = rest.partition("-")
    numbers = [seq, at] if dash else [seq]
    if not (all(_is_number(number) for number in numbers) and epoch.isascii() and epoch.isalnum()):
        raise ValueError(f"not an event id: {text[:80]!r}")
    return int(seq), epoch, int(at or 0)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 15
