"""The interface of a validator (ADR-038, section 1). docs/validators.md shows how to write one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from api_client.contract.issue import ValidationIssue


@dataclass(frozen=True, slots=True)
class ValidationResult:
    """The result of a validation, which is valid if no issue is an error."""

    valid: bool
    issues: list[ValidationIssue] = field(default_factory=list)

    @classmethod
    def from_issues(cls, issues: Sequence[ValidationIssue]) -> ValidationResult:
        return cls(valid=not any(issue.is_error for issue in issues), issues=list(issues))

    def __bool__(self) -> bool:
        return self.valid


class ResponseValidator(ABC):
    """Base class of validators, which check an answer and may repair it without the agent."""

    #: True if the fallback also applies to each file that the agent wrote.
    mends_files: ClassVar[bool] = False
    #: True if time and memory grow with the text alone and no file is read; other validators run in a child process.
    bounded: ClassVar[bool] = False
    #: Extra seconds for waiting on programs or models.
    patience: ClassVar[float] = 0.0

    def takes_bounded_time(self, texts: Iterable[str]) -> bool:
        """Return True if validating these texts takes bounded time. The default is the attribute ``bounded``."""
        return self.bounded

    @property
    @abstractmethod
    def name(self) -> str:
        """Return the unique name of the validator, as used in requests."""

    @abstractmethod
    def validate(self, response: str, context: Mapping[str, Any]) -> list[ValidationIssue]:
        """Check an answer and return the issues found.

        Args:
            response: the agent's complete answer.
            context: ``files`` (name to text of the files the agent wrote), ``locale``, and values from the caller.
        """

    def apply_fallback(self, response: str, context: Mapping[str, Any]) -> str | None:
        """Return the repaired answer, or None if this validator cannot repair anything without the agent."""
        return None

    def explain_fallback(self, before: str, after: str, context: Mapping[str, Any]) -> Sequence[str]:
        """Return one line for each change that the fallback made between two texts."""
        return ()

    def check(self, response: str, context: Mapping[str, Any] | None = None) -> ValidationResult:
        return ValidationResult.from_issues(self.validate(response, context or {}))
