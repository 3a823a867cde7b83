"""What a validator finds: an issue, and the result of one validation.

Source: ADR-038, section 1 "Base Validator Interface"; severities as in docs/enforcement.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Severity(StrEnum):
    """How much an issue weighs."""

    #: The answer cannot be accepted as it is; causes a retry.
    ERROR = "error"
    #: Reported, never a reason to ask again.
    WARNING = "warning"


@dataclass(frozen=True, slots=True)
class ValidationIssue:
    """One thing that is wrong with an answer.

    Attributes:
        code: name of the rule, such as ``MISSING_STEP_MARKER`` (``worker.enforcement.codes``).
        message: what is wrong, for people, in the turn's language.
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
        """Read a stored issue; keys of a newer version are left alone.

        Raises:
            TypeError: code, message or fix_hint is missing.
            ValueError: the severity is unknown.
        """
        return cls(**{name: data[name] for name in cls.__dataclass_fields__ if name in data})


@dataclass(frozen=True, slots=True)
class ValidationResult:
    """The result of one validation: valid when no issue is an error."""

    valid: bool
    issues: list[ValidationIssue] = field(default_factory=list)

    @classmethod
    def of(cls, issues: Sequence[ValidationIssue]) -> ValidationResult:
        """The result that these issues make."""
        return cls(valid=not any(issue.is_error for issue in issues), issues=list(issues))

    def __bool__(self) -> bool:
        return self.valid
