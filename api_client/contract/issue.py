"""An issue that a validator, a gate or the verifier found, and its wire form.

Source: ADR-038, section 1 "Base Validator Interface"; severities as in docs/enforcement.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, fields
from enum import StrEnum
from typing import Any

from api_client.contract.json_readers import READ


class Severity(StrEnum):
    """The severities of an issue: an error prevents the acceptance of an answer, a warning does not."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True, slots=True)
class ValidationIssue:
    """A problem that a validator found in an answer.

    Attributes:
        code: name of the broken rule, such as ``MISSING_STEP_MARKER``.
        message: the problem, for people, in the turn's language.
        fix_hint: what the agent should do.
        severity: ``error`` or ``warning``; only errors cause a retry.
        file: name of the file with the problem; empty for the answer itself.
        line: line of the answer or file, from 1; 0 if the issue is about no line.
        part: the wrong or missing part, if sending it alone repairs the answer; an error without one is about the whole
            answer.
        adr: name of the ADR with the problem, if a text holds several ADRs.
        shortens: the repair shortens the answer, so sections may disappear (no CONTENT_LOST).

    Raises:
        ValueError: the severity is neither ``error`` nor ``warning``.
    """

    code: str
    message: str
    fix_hint: str
    severity: Severity | str = Severity.ERROR
    validator: str = ""
    file: str = ""
    line: int = 0
    part: str = ""
    shortens: bool = False
    adr: str = ""

    def __post_init__(self) -> None:
        if type(self.severity) is not Severity:
            object.__setattr__(self, "severity", Severity(self.severity))
        if type(self.part) is not str:  # a ``Part``
            object.__setattr__(self, "part", str(self.part))

    @property
    def is_error(self) -> bool:
        """Return True if the issue prevents the answer from being accepted."""
        return self.severity == Severity.ERROR

    def to_dict(self) -> dict[str, Any]:
        data = {name: getattr(self, name) for name in self.__dataclass_fields__}  # all of them plain values
        return data | {"severity": str(self.severity)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ValidationIssue:
        """Create an issue from its JSON form, ignoring unknown keys.

        A missing key, or one of another type, gets its field's default or an empty string. An unknown severity means
        error.
        """
        values: Any = {name: read(data[name]) if name in data else default for name, read, default in _WIRE}
        return cls(**values)


def _read_severity(value: Any) -> Severity:
    return Severity.WARNING if value == Severity.WARNING else Severity.ERROR


_WIRE: list[tuple[str, Callable[[Any], Any], Any]] = [
    (each.name, READ.get(str(each.type), _read_severity), "" if each.default is MISSING else each.default)
    for each in fields(ValidationIssue)
]


def read_issues(value: Any) -> tuple[ValidationIssue, ...]:
    """Create issues from a JSON list, skipping entries that are not objects."""
    listed = value if isinstance(value, list | tuple) else ()
    return tuple(ValidationIssue.from_dict(each) for each in listed if isinstance(each, Mapping))


def issues_to_dicts(issues: Iterable[ValidationIssue]) -> list[dict[str, Any]]:
    return [issue.to_dict() for issue in issues]


def error_codes(issues: Iterable[ValidationIssue]) -> tuple[str, ...]:
    """Return the distinct codes of all issues that are errors, in order of appearance."""
    return tuple(dict.fromkeys(issue.code for issue in issues if issue.is_error))
