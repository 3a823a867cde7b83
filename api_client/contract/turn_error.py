"""The reason why a turn ended without an answer, as its record, its last event, the HTTP API and ``--json`` have it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from api_client.contract.annotated import READ
from api_client.contract.issue import ValidationIssue, issues_data, read_issues


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnError:
    """The error of a turn.

    Attributes:
        code: stable code (docs/errors.md).
        message: for the user, in the turn's language.
        reason: for operators, in English; may be empty.
        issues: what was found in the answer that was best.
    """

    code: str = ""
    message: str = ""
    reason: str = ""
    issues: tuple[ValidationIssue, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The error as a JSON-ready mapping. ``reason`` is left out when it is empty."""
        reason = {"reason": self.reason} if self.reason else {}
        return {"code": self.code, "message": self.message, **reason, "issues": issues_data(self.issues)}

    @classmethod
    def from_dict(cls, data: Any) -> TurnError | None:
        """Read one from the wire; None for an empty object and for what is not an object.

        What is missing, or of another type, is empty: another version may have written it.
        """
        if not data or not isinstance(data, dict):
            return None
        code, message, reason = (READ["str"](data.get(name)) for name in ("code", "message", "reason"))
        return cls(code=code, message=message, reason=reason, issues=read_issues(data.get("issues")))

    @classmethod
    def from_json(cls, text: str) -> TurnError | None:
        """As ``from_dict``, from the text in a turn's record; None for an empty one.

        Raises ``ValueError``: the text is not JSON.
        """
        return cls.from_dict(json.loads(text or "{}"))


def error_data(error: TurnError | None) -> dict[str, Any]:
    """The wire form of a turn's error; of none: an empty object."""
    return error.to_dict() if error else {}
