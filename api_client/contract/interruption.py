"""Questions that suspend a turn, such as a tool call's approval or a review."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any

#: Thirty days.
MAX_WAIT_SECONDS = 2_592_000
#: In bytes of JSON.
MAX_ASKED_BYTES = 262_144
_WORD = re.compile(r"[a-z][a-z0-9_]{0,39}", re.ASCII)


class Answerer(StrEnum):
    """The groups of people who may answer a suspended turn's question."""

    #: The turn's owner, operators, and anyone with the link that the owner's chat shows.
    OWNER = "owner"
    #: The turn's owner and operators, signed in or with their key; a link alone is not enough.
    SIGNED_IN = "signed_in"
    OPERATOR = "operator"


@dataclass(frozen=True, slots=True, kw_only=True)
class Interruption:
    """A question that suspends a turn until it is answered, together with the answer once there is one.

    Attributes:
        kind: name of the kind of question; see ``api_client/interruptions``.
        asked: the question, JSON-ready; never changes.
        reason: one word for operators.
        wait_seconds: longest wait. silence: the decision after that wait.
        delivery: delivery that asked the question, whose agent has ended; 0 if no run continues from it.
        answer: the decision; empty until there is one. note, text: what came with the decision.
    """

    kind: str
    asked: Mapping[str, Any] = field(default_factory=dict)
    reason: str = ""
    who: str = Answerer.OWNER.value
    wait_seconds: float = 3_600.0
    silence: str = "reject"
    delivery: int = 0
    answer: str = ""
    note: str = ""
    text: str = ""

    def __post_init__(self) -> None:
        if not 1 <= self.wait_seconds <= MAX_WAIT_SECONDS:
            raise ValueError(f"wait_seconds must be from 1 to {MAX_WAIT_SECONDS}, not {self.wait_seconds}")
        if not _WORD.fullmatch(self.silence) or not _WORD.fullmatch(self.kind):
            raise ValueError("kind and silence of an interruption are words of small letters, digits and _")

    def to_dict(self) -> dict[str, Any]:
        """Return the non-empty fields as a JSON-ready dictionary."""
        found = {each.name: value for each in fields(self) if (value := getattr(self, each.name)) not in ("", 0)}
        return found | {"asked": dict(self.asked)}

    @property
    def problem(self) -> str:
        """Return the problem that keeps the question from being stored, or an empty string."""
        try:
            too_long = len(self.to_json()) > MAX_ASKED_BYTES
        except TypeError as error:
            return f"what the interruption {self.kind!r} asks is not JSON: {error}"
        return f"what the interruption {self.kind!r} asks is longer than {MAX_ASKED_BYTES} bytes" if too_long else ""

    def to_json(self) -> str:
        return json.dumps(self.to_dict())

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Interruption | None:
        """Create a question from its stored form, or return None for an empty mapping."""
        return cls(**{each.name: data[each.name] for each in fields(cls) if each.name in data}) if data else None

    @classmethod
    def from_json(cls, text: str) -> Interruption | None:
        """Decode a stored question, or return None for an empty string or object."""
        return cls.from_dict(json.loads(text or "{}"))
