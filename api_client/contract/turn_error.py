"""The error of a turn that ended without an answer, as stored, published and shown."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from api_client.contract.issue import ValidationIssue, issues_to_dicts, read_issues
from api_client.contract.json_readers import READ


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnError:
    """The explanation for users and operators why a turn ended without an answer.

    ``message`` is for the user, in the turn's language; ``reason`` is an English sentence for operators.
    """

    code: str = ""
    message: str = ""
    reason: str = ""
    issues: tuple[ValidationIssue, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        reason = {"reason": self.reason} if self.reason else {}
        return {"code": self.code, "message": self.message, **reason, "issues": issues_to_dicts(self.issues)}

    @classmethod
    def from_dict(cls, data: Any) -> TurnError | None:
        """Create an error from its dictionary, or return None for an empty value or another type.

        Missing fields and fields of another type become empty: another version may have written them.
        """
        if not data or not isinstance(data, dict):
            return None
        code, message, reason = (READ["str"](data.get(name)) for name in ("code", "message", "reason"))
        return cls(code=code, message=message, reason=reason, issues=read_issues(data.get("issues")))

    @classmethod
    def from_json(cls, text: str) -> TurnError | None:
        """Decode an error in a turn's record, or return None for an empty string. Raises ``ValueError``."""
        return cls.from_dict(json.loads(text or "{}"))


def error_to_dict(error: TurnError | None) -> dict[str, Any]:
    """Return a turn's error as a JSON-ready dictionary, empty for None."""
    return error.to_dict() if error else {}
