"""One attempt of a turn as the policy sees it, and which of several is the best."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from worker.enforcement.issue import ValidationIssue


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One run of the agent and what came of it.

    Attributes:
        number: from 1, in order.
        text: the agent's raw answer.
        answer: the text that was judged: ``text``, or its repair spliced into the answer before it.
        complete: whether the agent really finished (ADR-036); else nothing was judged.
        issues: what the validators found in ``answer``.
        fixed_issues: what a policy that repairs first has mended in it.
        changes: what that repair changed, in words for the user.
        feedback: what the agent was told before this attempt; empty for the first.
    """

    number: int
    text: str
    answer: str
    complete: bool = True
    issues: tuple[ValidationIssue, ...] = ()
    fixed_issues: tuple[ValidationIssue, ...] = ()
    changes: tuple[str, ...] = ()
    feedback: str = ""

    @property
    def errors(self) -> tuple[ValidationIssue, ...]:
        """The issues that keep the answer from being accepted."""
        return tuple(issue for issue in self.issues if issue.is_error)


def best(history: Sequence[Attempt]) -> Attempt | None:
    """The best complete attempt: the fewest errors, then the least text lost, then the latest; None without one.

    Loss is counted in tenths of the longest answer, so that a few words fewer do not beat a later attempt.
    """
    complete = [attempt for attempt in history if attempt.complete]
    longest = max((len(attempt.answer) for attempt in complete), default=0) or 1
    return min(
        complete,
        key=lambda a: (len(a.errors), 10 * (longest - len(a.answer)) // longest, -a.number),
        default=None,
    )
