"""Escalation after all attempts have failed: another model on its own, then a person (ADR-025, decision 3).

Stored with the turn, so that any worker does what was asked for, whatever its own settings are.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from api_client.contract.errors import BadRequest
from api_client.contract.open_enum import OpenEnum

MAX_RUNS = 10
#: Longest time a turn can wait in the inbox, in seconds: thirty days.
MAX_TIMEOUT_SECONDS = 2_592_000.0
#: Longest note and longest edited answer, in characters.
MAX_NOTE, MAX_TEXT = 10_000, 1_000_000
#: Longest id of a decision; the ids of a turn's decisions are kept in one text, with spaces between them.
MAX_ID = 64
_ID = re.compile(rf"[A-Za-z0-9._@:-]{{1,{MAX_ID}}}", re.ASCII)


class DecisionKind(OpenEnum):
    """The decisions on a parked turn."""

    #: The last good result counts as it is.
    APPROVE = "approve"
    #: The given text counts; where the result is files, these as they are now.
    EDIT = "edit"
    #: The agent is asked again, with the note.
    RETRY = "retry"
    #: The turn fails.
    REJECT = "reject"


#: What a time-out may decide: only what needs no text from a person.
DEFAULTS = (DecisionKind.REJECT.value, DecisionKind.APPROVE.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Escalation:
    """The two stages.

    Attributes:
        model: stage 1, the model of HELIX_MODELS that is asked on its own; empty leaves the stage out.
        runs: how often it is run at most; 0 leaves the stage out too.
        human: stage 2, whether the turn is then parked for a person to decide.
        timeout_seconds: how long it lies there before ``default`` is decided: reject or approve.
    """

    model: str = ""
    runs: int = 1
    human: bool = True
    timeout_seconds: float = 86_400.0
    default: str = DecisionKind.REJECT.value

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Escalation:
        """Read a stored escalation; fields of a newer version are left alone."""
        return cls(**{name: data[name] for name in cls.__dataclass_fields__ if name in data})


@dataclass(frozen=True, slots=True, kw_only=True)
class InboxDecision:
    """The decision on a parked turn.

    Attributes:
        by: who decided: ``key:...``, user@host, or ``timeout``.
        for_: the name they gave; on the wire ``for``.
        text: of an edit, the answer that counts.
        at: when, in seconds since the epoch.
    """

    kind: DecisionKind
    by: str = ""
    for_: str = ""
    note: str = ""
    text: str = ""
    at: float = 0.0

    @property
    def who(self) -> str:
        """Return who decided, for people: ``key:1a2b for alice``, or the time-out."""
        return " for ".join(filter(None, ["the time-out" if self.timed_out else self.by, self.for_]))

    @property
    def timed_out(self) -> bool:
        """True when nobody decided in time."""
        return self.by in {"", "timeout"}

    def to_dict(self) -> dict[str, Any]:
        """The decision as a JSON-ready mapping."""
        data = {"kind": self.kind.value, "by": self.by, "for": self.for_, "note": self.note, "text": self.text}
        return {**data, "at": self.at}

    @classmethod
    def from_json(cls, text: str) -> InboxDecision | None:
        """Read a stored one, which ``turn.lua`` wrote; None for an empty text or object.

        Raises ``ValueError``: the text is not JSON.
        """
        data = json.loads(text or "{}")
        if not data:
            return None
        texts = {name: str(data.get(wire, "")) for name, wire in _TEXTS.items()}
        return cls(kind=DecisionKind(data.get("kind", "")), at=float(data.get("at", 0)), **texts)


#: Fields of a decision that are texts, and their names on the wire.
_TEXTS = {"by": "by", "for_": "for", "note": "note", "text": "text"}


def check_escalation(escalation: Escalation, models: Mapping[str, str]) -> None:
    """Refuse what can never work. Raises ``BadRequest``: names the field."""
    if escalation.model and escalation.model not in models:
        known = ", ".join(models)
        message = f"escalation: unknown model {escalation.model[:80]!r}; known: {known}"
        raise BadRequest(message, param="escalation.model", code="model_not_found")
    if not 0 <= escalation.runs <= MAX_RUNS:
        message = f"escalation: runs must be from 0 (no stage 1) to {MAX_RUNS}, not {escalation.runs}"
        raise BadRequest(message, param="escalation.runs")
    if not 1 <= escalation.timeout_seconds <= MAX_TIMEOUT_SECONDS:
        message = f"escalation: timeout_seconds must be from 1 to {MAX_TIMEOUT_SECONDS:g}"
        raise BadRequest(message, param="escalation.timeout_seconds")
    if escalation.default not in DEFAULTS:
        message = f"escalation: default must be one of {', '.join(DEFAULTS)}, not {escalation.default[:80]!r}"
        raise BadRequest(message, param="escalation.default")


def check_decision(
    kind: str, note: str, text: str, *, in_text: bool = True, decision_id: str = "", question: bool = False
) -> DecisionKind:
    """The kind of a decision that makes sense.

    ``question``: a person is asked whether a tool call may run. ``in_text``: the result is a text, not files.

    Raises ``BadRequest``: names the field.
    """
    if kind not in list(DecisionKind):
        known = ", ".join(DecisionKind)
        raise BadRequest(f"decision must be one of {known}, not {kind[:80]!r}", param="decision")
    if question and kind not in DEFAULTS:
        raise BadRequest("a tool call is answered by approve or reject", param="decision")
    if decision_id and not _ID.fullmatch(decision_id):
        message = f"decision_id must be 1 to {MAX_ID} letters, digits or . _ @ : -, not {decision_id[:80]!r}"
        raise BadRequest(message, param="decision_id")
    if len(note) > MAX_NOTE:
        raise BadRequest(f"the note must have at most {MAX_NOTE} characters", param="note")
    if kind == DecisionKind.RETRY and not note.strip():
        raise BadRequest("retry needs a note: the agent gets it as its prompt", param="note")
    if kind != DecisionKind.EDIT and text:
        raise BadRequest("only edit takes a text", param="text")
    if kind == DecisionKind.EDIT and not in_text and text:
        raise BadRequest("such a result is edited in its files, not by a text", param="text")
    if kind == DecisionKind.EDIT and in_text and not text.strip():
        raise BadRequest("edit needs the text of the answer", param="text")
    if len(text) > MAX_TEXT:
        raise BadRequest(f"the text must have at most {MAX_TEXT} characters", param="text")
    return DecisionKind(kind)
