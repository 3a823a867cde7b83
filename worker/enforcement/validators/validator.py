"""The interface of a validator (ADR-038, section 1). docs/validators.md shows how to write one in ten lines."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from api_client.contract.issue import ValidationIssue


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


class ResponseValidator(ABC):
    """Judges an answer, and repairs it where a rule can be met without the agent.

    A validator keeps no state between calls: it may be used by many threads at once.
    """

    #: True when the fallback may also be applied to the files the agent wrote, each as its own text.
    mends_files: ClassVar[bool] = False
    #: True when its time and memory grow with the text alone, and it reads no file: it is then judged in place. All
    #: others are judged in a child process, where one that hangs can be ended.
    bounded: ClassVar[bool] = False
    #: Seconds it may wait for programs or models, beyond what judging takes by itself.
    patience: ClassVar[float] = 0.0

    def bounded_on(self, texts: Iterable[str]) -> bool:
        """True if its work on these texts is bounded; for a validator that only some answers make look at files."""
        return self.bounded

    @property
    @abstractmethod
    def name(self) -> str:
        """The validator's unique name, as requests name it."""

    @abstractmethod
    def validate(self, response: str, context: Mapping[str, Any]) -> list[ValidationIssue]:
        """Judge an answer.

        Args:
            response: the agent's complete answer.
            context: ``files`` (name to text of the files the agent wrote), ``locale``, and what the caller adds.

        Returns:
            What is wrong; empty when nothing is.
        """

    def apply_fallback(self, response: str, context: Mapping[str, Any]) -> str | None:
        """Repair an answer without the agent.

        Returns:
            The repaired answer, or None when there is nothing this validator can repair.
        """
        return None

    def explain_fallback(self, before: str, after: str, context: Mapping[str, Any]) -> Sequence[str]:
        """Word what the fallback changed between two texts, a line each; empty when it has no words for it."""
        return ()

    def check(self, response: str, context: Mapping[str, Any] | None = None) -> ValidationResult:
        """Judge an answer and say whether it is valid: no issue is an error."""
        return ValidationResult.of(self.validate(response, context or {}))
