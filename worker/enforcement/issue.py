"""What a validator finds, and the result of one validation (ADR-038, section 1 "Base Validator Interface")."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from api_client.contract.issues.issue import Severity, ValidationIssue

__all__ = ["Severity", "ValidationIssue", "ValidationResult"]


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
