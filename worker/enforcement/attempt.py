"""One attempt of a turn as the policy sees it, and which of several is the best."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from api_client.contract.issue import ValidationIssue
from worker.enforcement.validators.services import NOTHING_SPENT, JudgingCost


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One run of the agent and its result.

    Attributes:
        number: from 1, in order. text: the agent's raw answer.
        answer: the text that was judged: ``text``, or its repair spliced into the answer before it.
        complete: whether the agent really finished (ADR-036); else nothing was judged.
        issues: what the validators found in ``answer``.
        fixed_issues: what a policy that repairs first has repaired in it.
        changes: what that repair changed, in words for the user.
        edits: where ``answer`` is not ``text``: what of the text was put into the answer before, and what was left out,
            in words.
        feedback: the prompt of this attempt; empty for the first.
        fresh: the agent was asked again, by a person or as another model; what came before is not an answer to keep.
        spent: what rules used of models to judge it.
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
    spent: JudgingCost = NOTHING_SPENT

    @property
    def errors(self) -> tuple[ValidationIssue, ...]:
        """The issues that keep the answer from being accepted."""
        return tuple([issue for issue in self.issues if issue.is_error])


def best(history: Sequence[Attempt]) -> Attempt | None:
    """The best complete attempt; None without one.

    That is the one with the fewest errors that ask for a whole new answer, then the fewest wrong parts, then the least
    text lost, then the latest. Loss is counted in tenths of the longest answer, so that a few words fewer do not beat
    a later attempt.
    """
    complete = [attempt for attempt in history if attempt.complete]
    if len(complete) <= 1:
        return complete[0] if complete else None
    longest = max(len(attempt.answer) for attempt in complete) or 1
    return min(complete, key=lambda a: (*_weight(a), 10 * (longest - len(a.answer)) // longest, -a.number))


def latest_set(history: Sequence[Attempt]) -> Sequence[Attempt]:
    """The attempts since the agent was last asked again."""
    for at in reversed(range(len(history))):
        if history[at].fresh:
            return history[at:]
    return history


def _weight(attempt: Attempt) -> tuple[int, int]:
    """Return how many errors ask for a whole new answer, and how many parts are wrong. All of a header is one part."""
    named = {(error.file, error.part.partition(".")[0]) for error in attempt.errors if error.part}
    return sum(not error.part for error in attempt.errors), len(named)
