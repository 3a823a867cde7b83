"""Pure transitions after an answer was validated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from api_client.contract.attempt_record import AttemptFacts
from api_client.contract.decision import HANDED_ON
from api_client.contract.event_kinds import AttemptAccepted, AttemptRejected, TurnFallback, TurnMended
from api_client.contract.events import Body
from api_client.contract.issue import ValidationIssue
from api_client.contract.messages import ending_message, explain_break, format_issue
from api_client.contract.record import FieldChanges
from api_client.contract.tasks import FAIL, FALLBACK, RETRY, ChainTask
from api_client.contract.turn import Outcome, PendingFailure, Turn, TurnState
from api_client.contract.turn_error import TurnError
from api_client.contract.usage import Usage
from api_client.turns.record.transition import Answer, Transition, attempt_facts, policy_retry_event, progress
from api_client.turns.record.turn_policy import find_turn_policy
from worker.enforcement.attempt import Attempt
from worker.enforcement.documents.step import step_of, strip_marker
from worker.enforcement.policy import Accept, Decision, Fallback, Policy, Retry, demote_issues
from worker.enforcement.repair import RepairResult
from worker.enforcement.validators.codes import clip_text
from worker.turns.interruptions.kind import FailedTurn
from worker.turns.transitions.interruptions import rescue_turn
from worker.turns.transitions.validation_counters import count_gave_up, count_rejected, count_validated

_NO_MORE = attempt_facts()


def after_validation(
    turn: Turn, chain_task: ChainTask, attempt: Attempt, policy: Policy, decision: Decision, usage: Usage
) -> Transition:
    """Return the transition that carries out the policy's decision on a validated attempt."""
    answer = attempt.answer
    issues = demote_issues(attempt.issues, policy, final=isinstance(decision, Accept))
    facts = attempt_facts(answer=answer, edits=attempt.edits, issues=issues, changes=tuple(attempt.changes))
    if isinstance(decision, Accept):
        step, source = step_of(answer)
        return accept_attempt(turn, chain_task, facts, issues, Answer(response=answer, step=step, step_source=source))
    errors = [issue for issue in issues if issue.is_error]

    def reject_attempt(
        decided: str, *events: Body, more: FieldChanges[AttemptFacts] = _NO_MORE, **changes: Any
    ) -> Transition:
        return Transition(
            attempt=chain_task.attempt,
            facts=facts | attempt_facts(decision=decided) | more,
            events=[AttemptRejected(attempt=chain_task.attempt, issues=issues), *events],
            counters=count_rejected(turn, decided, errors, usage),
            validated=True,
            **changes,
        )

    if isinstance(decision, Retry):
        return reject_attempt(
            "retry",
            policy_retry_event(turn, chain_task, "rejected", decision),
            more=attempt_facts(feedback=decision.feedback),
            state=TurnState.QUEUED,
            next=ChainTask(RETRY, chain_task.attempt + 1),
            fields=progress(retries=turn.retries + 1, transients=0),
        )
    if isinstance(decision, Fallback):
        repairs = TurnFallback(attempt=decision.attempt, codes=tuple(sorted({issue.code for issue in errors})))
        best = progress(best=decision.attempt)
        return reject_attempt("fallback", repairs, next=ChainTask(FALLBACK, chain_task.attempt), fields=best)
    transition = reject_attempt(
        "fail",
        next=ChainTask(FAIL, chain_task.attempt),
        fields=progress(failing=_pending_failure(decision.reason, attempt)),
    )
    if not decision.asks_person:
        return transition
    counters = count_rejected(turn, HANDED_ON, errors, usage)
    return rescue_turn(
        turn, transition, FailedTurn(best=decision.attempt, reason="rejected", issues=errors, counters=counters)
    )


def accept_attempt(
    turn: Turn,
    chain_task: ChainTask,
    facts: FieldChanges[AttemptFacts],
    issues: tuple[ValidationIssue, ...],
    answer: Answer,
) -> Transition:
    """Return the transition that ends the turn with the answer of the attempt that was just validated."""
    return Transition(
        attempt=chain_task.attempt,
        facts=facts | attempt_facts(decision="accept"),
        events=[AttemptAccepted(attempt=chain_task.attempt, issues=issues)],
        counters=count_validated(turn, "accept"),
        validated=True,
        outcome=Outcome.PASSED if chain_task.attempt == 1 else Outcome.PASSED_AFTER_RETRY,
        answer=answer,
    )


def _pending_failure(reason: str, attempt: Attempt) -> PendingFailure:
    if reason != "refused":
        return PendingFailure(reason=reason)
    said = clip_text(" ".join(strip_marker(attempt.answer).split()), 200)
    return PendingFailure(outcome=Outcome.REFUSED, code="refused", reason=f"the model refused: {said}", why="refused")


def after_fallback(turn: Turn, chain_task: ChainTask, best: int, repaired: RepairResult) -> Transition:
    """Return the transition after an automatic repair. It accepts the repaired answer or fails the turn."""
    left = demote_issues(repaired.issues, find_turn_policy(turn), final=True)
    facts = attempt_facts(changes=tuple(repaired.changes), mended=repaired.text)
    repair = TurnMended(
        attempt=best,
        changes=tuple(repaired.changes),
        fixed=tuple(repaired.fixed_issues),
        step=repaired.step,
        step_source=repaired.step_source,
    )
    if not any(issue.is_error for issue in left):
        return Transition(
            attempt=best,
            facts=facts,
            events=[repair],
            outcome=Outcome.PASSED_BY_FALLBACK,
            answer=Answer(response=repaired.text, step=repaired.step, step_source=repaired.step_source),
        )
    return Transition(
        attempt=best,
        next=ChainTask(FAIL, chain_task.attempt),
        facts=facts | attempt_facts(remaining=left),
        fields=progress(failing=PendingFailure(reason="the fallback could not repair every error")),
        events=[repair] if repaired.changes else [],
    )


def after_giving_up(
    turn: Turn, chain_task: ChainTask, failing: PendingFailure, issues: Sequence[ValidationIssue]
) -> Transition:
    """Return the transition that ends a turn without an acceptable answer and tells the user why."""
    outcome = failing.outcome
    if outcome is Outcome.FAILED:
        lines = [format_issue(issue) for issue in issues if issue.is_error]
    else:
        lines = [explain_break(failing.why or failing.code, turn.request.locale, failing.reason)]
    message = ending_message(outcome.value, turn.request.locale, lines, failing.code)
    error = TurnError(code=failing.code, message=message, reason=failing.reason, issues=tuple(issues))
    gave_up = count_gave_up(turn, issues) if outcome is Outcome.FAILED else {}
    return Transition(attempt=chain_task.attempt, outcome=outcome, answer=Answer(error=error), end_counters=gave_up)


def fail_unvalidated(chain_task: ChainTask, reason: str, code: str = "config") -> Transition:
    """Return the transition that fails a turn because its answer cannot be validated.

    ``code`` is the error code for the user.
    """
    failing = PendingFailure(outcome=Outcome.ERROR, code=code, reason=reason)
    return Transition(
        attempt=chain_task.attempt, next=ChainTask(FAIL, chain_task.attempt), fields=progress(failing=failing)
    )
