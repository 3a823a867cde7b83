"""Computes the transition after a phase's verification, without clock, store or files."""

from __future__ import annotations

from dataclasses import replace

from api_client.contract.attempt_record import AttemptRecord
from api_client.contract.decision import HANDED_ON
from api_client.contract.event_kinds import AttemptLost, AttemptRejected
from api_client.contract.issue import ValidationIssue
from api_client.contract.tasks import FAIL, ChainTask
from api_client.contract.turn import Outcome, PendingFailure, Turn, TurnState
from api_client.contract.turn_error import TurnError
from api_client.contract.usage import Usage
from api_client.turns.record.transition import Answer, Transition, attempt_facts, progress, rerun_task, retry_event
from worker.turns.interruptions.kind import FailedTurn
from worker.turns.transitions.after_run import CALLED_OFF, Facts, explain_stopped_turn
from worker.turns.transitions.after_validation import accept_attempt, fail_unvalidated
from worker.turns.transitions.interruptions import rescue_turn
from worker.turns.transitions.validation_counters import count_rejected
from worker.verification import ResultGround, VerificationResult, compose_feedback

#: Most verifications of one attempt if the verifier fails or gives no verdict.
VERIFIER_TRIES = 3


def transition_after_verification(
    turn: Turn, chain_task: ChainTask, record: AttemptRecord, result: VerificationResult, stop: str
) -> Transition:
    """Return the transition that follows the verification of a phase's output.

    ``stop`` is the reason if the verification was stopped.
    """
    if result.ground is ResultGround.STOPPED:
        return _transition_after_stop(turn, chain_task, stop)
    if result.ground is ResultGround.REFUSED:
        return fail_unvalidated(chain_task, "; ".join(result.errors))
    issues = _collect_issues(result)
    facts = attempt_facts(verification=result.to_dict(), answer=record.text, issues=issues)
    if result.success:
        return accept_attempt(turn, chain_task, facts, issues, Answer(response=record.text))
    if not result.has_verdict and turn.unverified + 1 < VERIFIER_TRIES:
        return Transition(
            attempt=chain_task.attempt,
            next=chain_task,
            fields=progress(unverified=turn.unverified + 1),
            facts=facts,
            delay_ms=1000 * 2**turn.unverified,
        )
    return _reject_attempt(turn, chain_task, record, result, facts, issues)


def _reject_attempt(
    turn: Turn,
    chain_task: ChainTask,
    record: AttemptRecord,
    result: VerificationResult,
    facts: Facts,
    issues: tuple[ValidationIssue, ...],
) -> Transition:
    errors, usage = [issue for issue in issues if issue.is_error], Usage.from_report(record.usage)
    rejected = AttemptRejected(attempt=chain_task.attempt, issues=issues)
    if chain_task.attempt < turn.max_attempts and result.has_verdict:
        feedback, codes = compose_feedback(result), sorted({issue.code for issue in issues})
        return Transition(
            attempt=chain_task.attempt,
            state=TurnState.QUEUED,
            next=rerun_task(turn, chain_task.attempt + 1),
            fields=progress(retries=turn.retries + 1, transients=0, unverified=0),
            facts=facts | attempt_facts(decision="retry", feedback=feedback),
            events=[rejected, retry_event(turn, chain_task.attempt + 1, "rejected", codes=codes, feedback=feedback)],
            counters=count_rejected(turn, "retry", errors, usage),
            validated=True,
        )
    reason = "rejected" if result.has_verdict else "the verifier gave no verdict"
    failing = PendingFailure(code="phase_not_verified", reason=reason)
    transition = Transition(
        attempt=chain_task.attempt,
        next=ChainTask(FAIL, chain_task.attempt),
        fields=progress(failing=failing, unverified=0, best=chain_task.attempt),
        facts=facts | attempt_facts(decision="fail"),
        events=[rejected],
        counters=count_rejected(turn, "fail", errors, usage),
        validated=True,
    )
    counters = count_rejected(turn, HANDED_ON, errors, usage)
    return rescue_turn(
        turn, transition, FailedTurn(best=chain_task.attempt, reason=reason, issues=issues, counters=counters)
    )


def _collect_issues(result: VerificationResult) -> tuple[ValidationIssue, ...]:
    found = tuple(
        replace(issue, validator=gate.gate.partition(":")[0]) for gate in result.gates.results for issue in gate.issues
    )
    verifiers = tuple(
        ValidationIssue(code="NOT_VERIFIED", message=error, fix_hint="", validator="verifier")
        for error in result.errors
    )
    return found if found and result.ground is ResultGround.GATES else found + verifiers


def _transition_after_stop(turn: Turn, chain_task: ChainTask, stop: str) -> Transition:
    if stop not in CALLED_OFF:
        lost = AttemptLost(attempt=chain_task.attempt, delivery=turn.delivery, during=stop or "stopped")
        return Transition(
            attempt=chain_task.attempt, next=chain_task, events=[lost], counters={"delivery.handed_over": 1}
        )
    outcome = CALLED_OFF[stop]
    return Transition(attempt=chain_task.attempt, outcome=outcome, answer=explain_stopped_turn(turn, outcome))


def cancel_unreached_phase(turn: Turn, chain_task: ChainTask, before: str, outcome: str) -> Transition:
    """Return a transition that cancels a phase because the previous phase did not pass."""
    german = turn.request.locale == "de"
    text = (
        f"Nicht ausgeführt: die Phase davor ({before}) endete als {outcome}."
        if german
        else f"Not run: the phase before ({before}) ended as {outcome}."
    )
    error = TurnError(code="phase_not_reached", message=text)
    return Transition(attempt=chain_task.attempt, outcome=Outcome.CANCELLED, answer=Answer(error=error))
