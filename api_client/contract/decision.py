"""The decision on a suspended turn, made by a person, a program or the time-out."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from api_client.contract.errors import BadRequest
from api_client.contract.open_enum import OpenEnum

#: In characters.
MAX_NOTE, MAX_TEXT = 10_000, 1_000_000
#: All ids of a turn's decisions are kept in one space-separated text.
MAX_ID = 64
LIST_COMMAND, SHOW_COMMAND = "turns inbox list", "turns inbox show"
#: Decision of an attempt whose turn was escalated to another model or to a person.
HANDED_ON = "escalate"
_WORD = re.compile(r"[a-z][a-z0-9_]{0,39}", re.ASCII)
_ID = re.compile(rf"[A-Za-z0-9._@:-]{{1,{MAX_ID}}}", re.ASCII)


class DecisionKind(OpenEnum):
    """The decisions that a person can make about a suspended turn. Plug-ins' questions may allow others."""

    #: Accept the last good result as it is.
    APPROVE = "approve"
    #: The given text counts; where files are the answer, those that are there now.
    EDIT = "edit"
    RETRY = "retry"
    REJECT = "reject"


#: Decisions that a time-out may make, because they need no text from a person.
DEFAULTS = (DecisionKind.REJECT.value, DecisionKind.APPROVE.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnDecision:
    """A decision about a suspended turn, made by a person, a program or the time-out.

    ``by`` is ``key:...``, user@host, or ``timeout``; ``for_`` is the name that the caller gave (``for`` on the wire).
    """

    kind: DecisionKind
    by: str = ""
    for_: str = ""
    note: str = ""
    text: str = ""
    at: float = 0.0

    @property
    def who(self) -> str:
        """Return who decided, such as ``key:1a2b for alice`` or ``the time-out``."""
        return " for ".join(filter(None, ["the time-out" if self.timed_out else self.by, self.for_]))

    @property
    def timed_out(self) -> bool:
        """Return True if nobody decided in time, so that the default decision was used."""
        return self.by in {"", "timeout"}

    def to_dict(self) -> dict[str, Any]:
        data = {"kind": self.kind.value, "by": self.by, "for": self.for_, "note": self.note, "text": self.text}
        return {**data, "at": self.at}

    @classmethod
    def from_json(cls, text: str) -> TurnDecision | None:
        """Decode a stored decision, or return None if there is none. Raises ``ValueError`` for invalid JSON."""
        data = json.loads(text or "{}")
        if not data:
            return None
        texts = {name: str(data.get(wire, "")) for name, wire in _TEXTS.items()}
        return cls(kind=DecisionKind(data.get("kind", "")), at=float(data.get("at", 0)), **texts)


_TEXTS = {"by": "by", "for_": "for", "note": "note", "text": "text"}


def check_decision(kind: str, note: str, text: str, decision_id: str = "") -> None:
    """Check the format of a decision's fields. Raises ``BadRequest``, which names the invalid field."""
    if not _WORD.fullmatch(kind):
        raise BadRequest(f"decision must be a word such as {', '.join(DecisionKind)}", param="decision")
    if decision_id and not _ID.fullmatch(decision_id):
        message = f"decision_id must be 1 to {MAX_ID} letters, digits or . _ @ : -, not {decision_id[:80]!r}"
        raise BadRequest(message, param="decision_id")
    for name, said in (("note", note), ("text", text)):
        if "\0" in said:
            raise BadRequest(f"the {name} holds NUL, which is not a character", param=name)
    if len(note) > MAX_NOTE:
        raise BadRequest(f"the note must have at most {MAX_NOTE} characters", param="note")
    if len(text) > MAX_TEXT:
        raise BadRequest(f"the text must have at most {MAX_TEXT} characters", param="text")
