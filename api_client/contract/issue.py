"""The finding of a validator, a gate or the verifier: an issue, and its wire form.

Source: ADR-038, section 1 "Base Validator Interface"; severities as in docs/enforcement.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, fields
from enum import StrEnum
from typing import Any

from api_client.contract.annotated import READ


class Severity(StrEnum):
    """The weight of an issue."""

    #: The answer cannot be accepted as it is; causes a retry.
    ERROR = "error"
    #: Reported, never a reason to ask again.
    WARNING = "warning"


@dataclass(frozen=True, slots=True)
class ValidationIssue:
    """One thing that is wrong with an answer.

    Attributes:
        code: name of the rule, such as ``MISSING_STEP_MARKER`` (``worker.enforcement.validators.codes``).
        message: the faults, for people, in the turn's language.
        fix_hint: what to do about it, for the agent.
        severity: ``error`` or ``warning``; only errors cause a retry.
        validator: name of the validator that found it; set by ``examine``.
        file: name of the file it is in, empty for the answer itself.
        line: line in the answer or file, from 1; 0 when the issue is about no line.
        part: the wrong or missing part (a ``Part`` or its name), when sending it alone repairs the answer; an error
            without one is about the whole answer.
        adr: name of the ADR it is in, where a text holds several; else empty.
        shortens: the repair is to make the answer shorter, so that sections may go (no CONTENT_LOST).

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
        """True when the answer cannot be accepted because of this."""
        return self.severity == Severity.ERROR

    def to_dict(self) -> dict[str, Any]:
        """The issue as a JSON-ready mapping."""
        data = {name: getattr(self, name) for name in self.__dataclass_fields__}  # all of them plain values
        return data | {"severity": str(self.severity)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ValidationIssue:
        """Read an issue from the wire; keys of a newer version are left alone.

        A key that is missing, or of another type, gets its field's default or an empty text; a severity that is not
        known means an error.
        """
        values: Any = {name: read(data[name]) if name in data else default for name, read, default in _WIRE}
        return cls(**values)


def _severity(value: Any) -> Severity:
    return Severity.WARNING if value == Severity.WARNING else Severity.ERROR


#: Of each field: its name, how it is read, and what it is when it is missing.
_WIRE: list[tuple[str, Callable[[Any], Any], Any]] = [
    (each.name, READ.get(str(each.type), _severity), "" if each.default is MISSING else each.default)
    for each in fields(ValidationIssue)
]


def read_issues(value: Any) -> tuple[ValidationIssue, ...]:
    """The issues in a JSON list; whatever is not an object is passed over."""
    listed = value if isinstance(value, list | tuple) else ()
    return tuple(ValidationIssue.from_dict(each) for each in listed if isinstance(each, Mapping))


def issues_data(issues: Iterable[ValidationIssue]) -> list[dict[str, Any]]:
    """The wire form of issues: a JSON-ready list."""
    return [issue.to_dict() for issue in issues]


def error_codes(issues: Iterable[ValidationIssue]) -> tuple[str, ...]:
    """The codes of the errors among issues, each once, in the order they were found."""
    return tuple(dict.fromkeys(issue.code for issue in issues if issue.is_error))
