"""Attempts of a turn, and the choice of the best attempt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from api_client.contract.issue import ValidationIssue
from api_client.contract.usage import NOTHING_USED, Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """The agent's answer in one attempt of a turn, with its validation result.

    Attributes:
        answer: the validated text: ``text``, or the previous answer with parts of ``text`` put in.
        complete: False if the agent did not finish (ADR-036); then nothing was validated.
        changes: descriptions of repairs made before validation (``fixed_issues``).
        edits: descriptions of how ``answer`` was made from ``text``.
        feedback: the prompt of this attempt; empty for the first.
        fresh: a person or another model asked again, so earlier answers are not kept.
    """

    number: int
    text: str
    answer: str
    complete: bool = True
    issues: tuple[ValidationIssue, ...] = ()
    fixed_issues: tuple[ValidationIssue, ...] = ()
    changes: tuple[str, ...] = ()
    edits: tuple[str, ...] = ()
    feedback: str = ""
    fresh: bool = False
    spent: Usage = NOTHING_USED

    @property
    def errors(self) -> tuple[ValidationIssue, ...]:
        """Return the validation issues that keep the answer from being accepted."""
        return tuple([issue for issue in self.issues if issue.is_error])


def find_best_attempt(history: Sequence[Attempt]) -> Attempt | None:
    """Return the complete attempt whose answer needs the fewest repairs, or None if no attempt is complete.

    Best has the fewest errors that need a whole new answer, then the fewest wrong parts, then the least lost text.
    """
    complete = [attempt for attempt in history if attempt.complete]
    if len(complete) <= 1:
        return complete[0] if complete else None
    longest = max(len(attempt.answer) for attempt in complete) or 1
    return min(complete, key=lambda a: (*_count_errors(a), 10 * (longest - len(a.answer)) // longest, -a.number))


def latest_attempts(history: Sequence[Attempt]) -> Sequence[Attempt]:
    """Return the attempts from the last ``fresh`` one on, that is, since a person or another model took over."""
    for at in reversed(range(len(history))):
        if history[at].fresh:
            return history[at:]
    return history


def _count_errors(attempt: Attempt) -> tuple[int, int]:
    named = {(error.file, error.part.partition(".")[0]) for error in attempt.errors if error.part}
    return sum(not error.part for error in attempt.errors), len(named)
