"""Compute the transition after a phase's verification, without clock, store or files.

A result counts once: the commit with the lease's token records it together with its attempt, and a success is sealed
before its files are published.
"""

from __future__ import annotations

from dataclasses import replace

from api_client.contract.attempt_record import AttemptRecord
from api_client.contract.decision import HANDED_ON
from api_client.contract.event_kinds import AttemptAccepted, AttemptLost, AttemptRejected
from api_client.contract.issue import ValidationIssue
from api_client.contract.tasks import FAIL, Link
from api_client.contract.turn import Outcome, PendingFailure, Turn, TurnState
from api_client.contract.turn_error import TurnError
from api_client.turns.record.moves import Answer, Move, again, attempt_facts, progress, retrying
from worker.turns.interruptions.kind import Failure
from worker.turns.transitions.after_judging import cannot_judge
from worker.turns.transitions.after_run import CALLED_OFF, Facts, called_off
from worker.turns.transitions.interruptions import rescued
from worker.turns.transitions.judged_counters import judged_counters, rejected_counters
from worker.turns.transitions.usage import Usage
from worker.verification import ResultGround, VerificationResult, compose_feedback

#: Most verifications of one attempt if the verifier fails or gives no verdict.
VERIFIER_TRIES = 3


def transition_after_verification(
    turn: Turn, link: Link, record: AttemptRecord, result: VerificationResult, stop: str
) -> Move:
    """Return what happens to a turn after the output of its phase was verified.

    ``stop`` is the reason if the verification was stopped.
    """
    if result.ground is ResultGround.STOPPED:
        return _transition_after_stop(turn, link, stop)
    if result.ground is ResultGround.REFUSED:
        return cannot_judge(link, "; ".join(result.errors))
    issues = _collect_issues(result)
    facts = attempt_facts(verification=result.to_dict(), answer=record.text, issues=issues)
    if result.success:
        return Move(
            attempt=link.attempt,
            facts=facts | attempt_facts(decision="accept"),
            events=[AttemptAccepted(attempt=link.attempt, issues=issues)],
            counters=judged_counters(turn, "accept"),
            judged=True,
            outcome=Outcome.PASSED if link.attempt == 1 else Outcome.PASSED_AFTER_RETRY,
            answer=Answer(response=record.text),
        )
    if not result.judged and turn.unverified + 1 < VERIFIER_TRIES:
        return Move(
            attempt=link.attempt,
            next=link,
            fields=progress(unverified=turn.unverified + 1),
            facts=facts,
            delay_ms=1000 * 2**turn.unverified,
        )
    return _reject_attempt(turn, link, record, result, facts, issues)


def _reject_attempt(
    turn: Turn,
    link: Link,
    record: AttemptRecord,
    result: VerificationResult,
    facts: Facts,
    issues: tuple[ValidationIssue, ...],
) -> Move:
    errors, usage = [issue for issue in issues if issue.is_error], Usage.of(record.usage)
    rejected = AttemptRejected(attempt=link.attempt, issues=issues)
    if link.attempt < turn.max_attempts and result.judged:
        feedback, codes = compose_feedback(result), sorted({issue.code for issue in issues})
        return Move(
            attempt=link.attempt,
            state=TurnState.QUEUED,
            next=again(turn, link.attempt + 1),
            fields=progress(retries=turn.retries + 1, transients=0, unverified=0),
            facts=facts | attempt_facts(decision="retry", feedback=feedback),
            events=[rejected, retrying(turn, link.attempt + 1, "rejected", codes=codes, feedback=feedback)],
            counters=rejected_counters(turn, "retry", errors, usage),
            judged=True,
        )
    reason = "rejected" if result.judged else "the verifier gave no verdict"
    failing = PendingFailure(code="phase_not_verified", reason=reason)
    move = Move(
        attempt=link.attempt,
        next=Link(FAIL, link.attempt),
        fields=progress(failing=failing, unverified=0, best=link.attempt),
        facts=facts | attempt_facts(decision="fail"),
        events=[rejected],
        counters=rejected_counters(turn, "fail", errors, usage),
        judged=True,
    )
    counters = rejected_counters(turn, HANDED_ON, errors, usage)
    return rescued(turn, move, Failure(best=link.attempt, reason=reason, issues=issues, counters=counters))


def _collect_issues(result: VerificationResult) -> tuple[ValidationIssue, ...]:
    found = tuple(
        replace(issue, validator=gate.gate.partition(":")[0]) for gate in result.gates.results for issue in gate.issues
    )
    verifiers = tuple(
        ValidationIssue(code="NOT_VERIFIED", message=error, fix_hint="", validator="verifier")
        for error in result.errors
    )
    return found if found and result.ground is ResultGround.GATES else found + verifiers


def _transition_after_stop(turn: Turn, link: Link, stop: str) -> Move:
    if stop not in CALLED_OFF:
        lost = AttemptLost(attempt=link.attempt, delivery=turn.delivery, during=stop or "stopped")
        return Move(attempt=link.attempt, next=link, events=[lost], counters={"delivery.handed_over": 1})
    outcome = CALLED_OFF[stop]
    return Move(attempt=link.attempt, outcome=outcome, answer=called_off(turn, outcome))


def cancel_unreached_phase(turn: Turn, link: Link, before: str, outcome: str) -> Move:
    """Return a transition that cancels a phase because the phase before it did not pass."""
    german = turn.request.locale == "de"
    text = (
        f"Nicht ausgeführt: die Phase davor ({before}) endete als {outcome}."
        if german
        else f"Not run: the phase before ({before}) ended as {outcome}."
    )
    error = TurnError(code="phase_not_reached", message=text)
    return Move(attempt=link.attempt, outcome=Outcome.CANCELLED, answer=Answer(error=error))
