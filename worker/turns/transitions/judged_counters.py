"""What a judged answer counts: its verdict, its errors by validator and code, and the run that was wasted."""

from __future__ import annotations

from collections.abc import Sequence

from api_client.contract.counters import OTHER, counter, model_of
from api_client.contract.issue import ValidationIssue
from api_client.contract.turn import Turn
from api_client.contract.work import find_work
from worker.enforcement.content_guard import GUARD
from worker.enforcement.validators.codes import CODES
from worker.turns.transitions.usage import Usage


def judged_counters(turn: Turn, decision: str) -> dict[str, int]:
    """Return the counters of a judged result."""
    model = model_of(turn)
    judged = {counter("attempt.judged", decision, model): 1}
    kind = find_work(turn.request)
    judged |= kind.count_judged(decision)
    if not kind.answers_in_text:
        return judged
    for name in turn.request.validators:
        judged[counter("validator.judged", name, model)] = 1
    return judged


def rejected_counters(turn: Turn, decision: str, errors: Sequence[ValidationIssue], usage: Usage) -> dict[str, int]:
    """The same of one with errors, whose run had this ``usage``."""
    validators, codes = _rules(turn, errors)
    return {
        **judged_counters(turn, decision),
        **{counter("validator.rejected", name, decision, model_of(turn)): 1 for name in validators},
        **{counter("code.rejected", code, decision): 1 for code in codes},
        **usage.wasted(model_of(turn)),
    }


def _rules(turn: Turn, issues: Sequence[ValidationIssue]) -> tuple[set[str], set[str]]:
    """The validators and codes of errors, as labels: unknown ones count as one.

    An error that no validator found, such as a file that is not taken, counts by its code alone.
    """
    errors = [issue for issue in issues if issue.is_error]
    if find_work(turn.request).has_fixed_codes:
        return {issue.validator for issue in errors}, {issue.code for issue in errors}
    ours = {*turn.request.validators, GUARD}
    validators = {name if name in ours else OTHER for name in (issue.validator for issue in errors) if name}
    return validators, {code if code in CODES else OTHER for code in (issue.code for issue in errors)}


def gave_up_counters(turn: Turn, issues: Sequence[ValidationIssue]) -> dict[str, int]:
    """Return what a turn counts that failed with these issues left."""
    validators, codes = _rules(turn, issues)
    return {
        **{counter("validator.gave_up", name): 1 for name in validators},
        **{counter("code.gave_up", code): 1 for code in codes},
    }
