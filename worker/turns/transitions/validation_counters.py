"""Metrics counters of validated answers: verdicts, errors by validator and code, and wasted runs."""

from __future__ import annotations

from collections.abc import Sequence

from api_client.contract.answer_format import RESPONSE_FORMAT
from api_client.contract.counters import OTHER, counter_field, model_label
from api_client.contract.issue import ValidationIssue
from api_client.contract.turn import Turn
from api_client.contract.usage import Usage
from api_client.contract.work import find_work
from worker.enforcement.content_guard import GUARD
from worker.enforcement.validators.codes import CODES


def count_validated(turn: Turn, decision: str) -> dict[str, int]:
    """Return the metrics counters for a validated answer and the decision about it."""
    model = model_label(turn)
    validated = {counter_field("attempt.judged", decision, model): 1}
    kind = find_work(turn.request)
    validated |= kind.count_validated(decision)
    if not kind.answers_in_text:
        return validated
    for name in turn.request.validators:
        validated[counter_field("validator.judged", name, model)] = 1
    return validated


def count_rejected(turn: Turn, decision: str, errors: Sequence[ValidationIssue], usage: Usage) -> dict[str, int]:
    """Return the metrics counters for a rejected answer, including its run's wasted tokens and cost."""
    validators, codes = _error_labels(turn, errors)
    return {
        **count_validated(turn, decision),
        **{counter_field("validator.rejected", name, decision, model_label(turn)): 1 for name in validators},
        **{counter_field("code.rejected", code, decision): 1 for code in codes},
        **usage.count_waste(model_label(turn)),
    }


def _error_labels(turn: Turn, issues: Sequence[ValidationIssue]) -> tuple[set[str], set[str]]:
    """Return the validators and the issue codes of errors, for metrics. Unknown names share one label."""
    errors = [issue for issue in issues if issue.is_error]
    if find_work(turn.request).has_fixed_codes:
        return {issue.validator for issue in errors}, {issue.code for issue in errors}
    ours = {*turn.request.validators, RESPONSE_FORMAT, GUARD}
    validators = {name if name in ours else OTHER for name in (issue.validator for issue in errors) if name}
    return validators, {code if code in CODES else OTHER for code in (issue.code for issue in errors)}


def count_gave_up(turn: Turn, issues: Sequence[ValidationIssue]) -> dict[str, int]:
    """Return the metrics counters for a turn that failed with these issues."""
    validators, codes = _error_labels(turn, issues)
    return {
        **{counter_field("validator.gave_up", name): 1 for name in validators},
        **{counter_field("code.gave_up", code): 1 for code in codes},
    }
