"""The policy (docs/enforcement.md): a pure decision over the attempts so far."""

from __future__ import annotations

import pytest

from worker.enforcement import (
    Accept,
    Attempt,
    Decision,
    Fail,
    Fallback,
    Policy,
    Retry,
    ValidationIssue,
    best,
    build_feedback,
    decide,
    judge,
)
from worker.enforcement.attempt import latest_set
from worker.enforcement.policy import Action
from worker.enforcement.validators import StepMarkerValidator


def issue(
    code: str = "MISSING_TEXT", validator: str = "own", severity: str = "error", part: str = ""
) -> ValidationIssue:
    return ValidationIssue(code, f"{code} fehlt", "ergänzen", severity, validator=validator, part=part)


def attempts(*issues: list[ValidationIssue] | None, answer: str = "Antwort") -> list[Attempt]:
    """Attempts with these issues; None for one that was not complete."""
    return [
        Attempt(number=n, text=answer, answer=answer, complete=found is not None, issues=tuple(found or ()))
        for n, found in enumerate(issues, 1)
    ]


def test_an_answer_without_errors_is_accepted() -> None:
    assert decide(attempts([])) == Accept(1)
    assert decide(attempts([issue(severity="warning")])) == Accept(1)
    assert decide(attempts([issue()], [])) == Accept(2)


def test_errors_are_asked_for_again_up_to_three_runs_then_the_fallback_comes() -> None:
    first, second, third = issue("A"), issue("B"), issue("C")
    assert isinstance(decide(attempts([first])), Retry)
    assert isinstance(decide(attempts([first], [second])), Retry)
    assert decide(attempts([first], [second], [third])) == Fallback(3, ("C",))


def test_feedback_names_errors_only_with_code_message_and_fix() -> None:
    decision = decide(attempts([issue("A"), issue("W", severity="warning")]))
    assert isinstance(decision, Retry)
    assert decision.codes == ("A",)
    assert decision.feedback == (
        "IMPORTANT: Your last answer had validation errors. Please correct:\n\n"
        "**A**: A fehlt\n  → Fix: ergänzen\n\n"
        "Please repeat your answer with the corrections."
    )


def test_feedback_asks_for_the_missing_parts_alone_when_every_error_names_one() -> None:
    assert build_feedback([issue(part="step_marker")], "de").endswith(
        "Schicke dabei nur den STEP-Marker: Der Rest deiner Antwort liegt vor und bleibt unverändert."
    )
    assert "Schicke dabei nur" not in build_feedback([issue(part="step_marker"), issue()], "de")
    assert build_feedback([issue(part="## Kontext")]).endswith(
        "Send only the section '## Kontext': the rest of your answer is kept as it is."
    )


def test_an_endless_list_of_issues_makes_no_endless_prompt() -> None:
    feedback = build_feedback([issue(f"C{n}") for n in range(1000)])
    assert len(feedback) < 3000
    assert "980 more" in feedback


def test_an_incomplete_answer_uses_up_an_attempt_and_is_asked_for_again() -> None:
    decision = decide(attempts(None))
    assert isinstance(decision, Retry)
    assert decision.codes == ("INCOMPLETE_RESPONSE",)
    assert "broke off" in decision.feedback
    assert "brach ab" in getattr(decide(attempts(None), Policy(locale="de")), "feedback", "")


def test_a_turn_whose_last_attempt_is_incomplete_ends_incomplete_with_the_best_one_named() -> None:
    assert decide(attempts(None, None, None)) == Fail(3, "incomplete")
    assert decide(attempts([issue()], None, None)) == Fail(1, "incomplete")


def test_an_incomplete_answer_is_never_the_one_that_is_repaired() -> None:
    assert decide(attempts(None, None, [issue()])) == Fallback(3, ("MISSING_TEXT",))


def test_the_same_errors_three_times_in_a_row_end_the_asking() -> None:
    five = Policy(max_attempts=5)
    assert isinstance(decide(attempts([issue()], [issue()]), five), Retry)
    assert isinstance(decide(attempts([issue()], [issue()], [issue()]), five), Fallback)
    assert isinstance(decide(attempts([issue("A")], [issue()], [issue()]), five), Retry)
    assert isinstance(decide(attempts([issue()], None, [issue()]), five), Retry)


def test_the_best_attempt_counts_not_the_last() -> None:
    assert decide(attempts([issue("A")], [issue("A"), issue("B")], [issue("B"), issue("C")])) == Fallback(1, ("B", "C"))


def test_among_equals_the_least_shortened_then_the_latest_is_best() -> None:
    long, short = attempts([issue()], answer="x" * 1000)[0], attempts([issue()], [issue()], answer="x" * 300)[1]
    assert best([long, short]) is long
    near = attempts([issue()], [issue()], answer="x" * 995)[1]
    assert best([long, near]) is near
    assert best(attempts(None)) is None


def test_a_policy_can_fail_escalate_or_warn_at_once() -> None:
    history = attempts([issue()])
    assert decide(history, Policy(order={"own": ("fail",)})) == Fail(1, "rejected")
    assert decide(history, Policy(order={"own": ("escalate",)})) == Fail(1, "escalated")
    assert decide(history, Policy(order={"own": ("warn",)})) == Accept(1)
    assert decide(history, Policy(order={"own": ("fallback", "fail")})) == Fallback(1, ("MISSING_TEXT",))


def test_a_policy_can_escalate_after_the_retries() -> None:
    policy = Policy(order={"own": ("retry", "escalate")})
    assert isinstance(decide(attempts([issue()]), policy), Retry)
    assert decide(attempts([issue("A")], [issue("B")], [issue()]), policy) == Fail(3, "escalated")


def test_a_retry_one_validator_wants_comes_before_the_fallback_of_another() -> None:
    policy = Policy(order={"step_marker": ("fallback", "fail")})
    decision: Decision = decide(attempts([issue(), issue(validator="step_marker")]), policy)
    assert isinstance(decision, Retry)


def test_a_policy_that_repairs_first_costs_no_run_of_the_agent() -> None:
    policy = Policy(order={"step_marker": ("repair", "retry", "fallback", "fail")})
    attempt = judge([], "Was genau?", [StepMarkerValidator()], policy=policy)
    assert attempt.answer == "Was genau?\n\n<!-- STEP: what -->"
    assert [fixed.code for fixed in attempt.fixed_issues] == ["MISSING_STEP_MARKER"]
    assert decide([attempt], policy) == Accept(1)
    assert decide([judge([], "Hallo.", [StepMarkerValidator()], policy=policy)], policy) == Accept(1)


@pytest.mark.parametrize(
    "wrong", [{"max_attempts": 0}, {"max_attempts": -1}, {"locale": "fr"}, {"order": {"a": ("shout",)}}]
)
def test_a_policy_that_makes_no_sense_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"max_attempts|locale|Action"):
        Policy(**wrong)  # type: ignore[arg-type]


def test_there_is_nothing_to_decide_without_an_attempt() -> None:
    with pytest.raises(ValueError, match="no attempt"):
        decide([])


def test_the_attempts_since_the_agent_was_last_asked_anew_count_together() -> None:
    one, two, three, four = (
        Attempt(number=number, text="", answer="", fresh=number in (2, 3)) for number in (1, 2, 3, 4)
    )
    assert list(latest_set([one, two, three, four])) == [three, four]
    assert list(latest_set([one])) == [one]
    assert list(latest_set([])) == []


@pytest.mark.parametrize(
    ("then", "decision"), [(Action.WARN, Accept(1)), (Action.FAIL, Fail(1, "rejected"))], ids=["warn", "fail"]
)
def test_a_rule_that_failed_itself_asks_for_no_retry_and_what_follows_it_in_its_order_counts(
    then: Action, decision: Decision
) -> None:
    policy = Policy(order={"own": (Action.RETRY, then)})
    assert decide(attempts([issue("VALIDATOR_ERROR")]), policy) == decision
