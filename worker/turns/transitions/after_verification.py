"""The move after verifying a phase: a pure function from the result to a move. No clock, no store, no file.

A result counts once: it is recorded with its attempt by the commit that carries the lease's token, and a success is
sealed before its files are published. Two verifications of one attempt cannot both count.
"""

from __future__ import annotations

from dataclasses import replace

from api_client.contract.attempt import AttemptFacts, AttemptRecord
from api_client.contract.counters import counter, model_of
from api_client.contract.event_kinds import AttemptAccepted, AttemptLost, AttemptRejected
from api_client.contract.issues.issue import ValidationIssue
from api_client.contract.issues.turn_error import TurnError
from api_client.contract.record import FieldChanges
from api_client.contract.tasks import FAIL, Link
from api_client.contract.turn import Failing, Outcome, Turn, TurnState
from api_client.contract.words.messages import GIVEN_UP
from api_client.turns.record.moves import Answer, Move, again, attempt_facts, progress, retrying
from worker.turns.transitions.after_judging import cannot_judge
from worker.turns.transitions.escalation import escalated
from worker.turns.transitions.usage import Usage
from worker.verification import Ground, VerificationResult, feedback_on

#: A verifier that cannot work, or gives no verdict, is asked so often for one attempt: the agent could not repair that.
VERIFIER_TRIES = 3
_CALLED_OFF = {"cancelled": Outcome.CANCELLED, "expired": Outcome.EXPIRED}


def after_verification(turn: Turn, link: Link, record: AttemptRecord, result: VerificationResult, stop: str) -> Move:
    """Return what follows; ``stop`` is why the verification was stopped, if it was."""
    if result.ground is Ground.STOPPED:
        return _stopped(turn, link, stop)
    if result.ground is Ground.REFUSED:
        return cannot_judge(link, "; ".join(result.errors))
    issues = _issues(result)
    facts = attempt_facts(verification=result.to_dict(), answer=record.text, issues=issues)
    if result.success:
        return Move(
            attempt=link.attempt,
            facts=facts | attempt_facts(decision="accept"),
            events=[AttemptAccepted(attempt=link.attempt, issues=issues)],
            counters=_judged(turn, "accept"),
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
    return _rejected(turn, link, record, result, facts, issues)


def _rejected(
    turn: Turn,
    link: Link,
    record: AttemptRecord,
    result: VerificationResult,
    facts: FieldChanges[AttemptFacts],
    issues: tuple[ValidationIssue, ...],
) -> Move:
    """Ask again while runs are left, else hand the turn on or give up."""
    model = model_of(turn)
    wasted = Usage.of(record.usage).wasted(model)
    rejected = AttemptRejected(attempt=link.attempt, issues=issues)

    def counted(decision: str) -> dict[str, int]:
        errors = [issue for issue in issues if issue.is_error]
        return {
            **_judged(turn, decision),
            **{counter("validator.rejected", issue.validator, decision, model): 1 for issue in errors},
            **{counter("code.rejected", issue.code, decision): 1 for issue in errors},
            **wasted,
        }

    if link.attempt < (turn.allowed or turn.request.max_attempts) and result.judged:
        return _ask_again(turn, link, result, facts, issues, rejected, counted("retry"))
    reason = "rejected" if result.judged else "the verifier gave no verdict"
    failing = Failing(code="phase_not_verified", reason=reason)
    move = Move(
        attempt=link.attempt,
        next=Link(FAIL, link.attempt),
        fields=progress(failing=failing, unverified=0, best=link.attempt),
        facts=facts | attempt_facts(decision="fail"),
        events=[rejected],
        counters=counted("fail"),
        judged=True,
    )
    handed_on = replace(move, counters=counted("escalate"))
    return escalated(turn, handed_on, best=link.attempt, reason=reason, issues=issues) or move


def _ask_again(
    turn: Turn,
    link: Link,
    result: VerificationResult,
    facts: FieldChanges[AttemptFacts],
    issues: tuple[ValidationIssue, ...],
    rejected: AttemptRejected,
    counters: dict[str, int],
) -> Move:
    feedback = feedback_on(result)
    codes = sorted({issue.code for issue in issues})
    asking = retrying(turn, link.attempt + 1, "rejected", codes=codes, feedback=feedback)
    return Move(
        attempt=link.attempt,
        state=TurnState.QUEUED,
        next=again(turn, link.attempt + 1),
        fields=progress(retries=turn.retries + 1, transients=0, unverified=0),
        facts=facts | attempt_facts(decision="retry", feedback=feedback),
        events=[rejected, asking],
        counters=counters,
        judged=True,
    )


def _judged(turn: Turn, decision: str) -> dict[str, int]:
    return {counter("attempt.judged", decision, model_of(turn)): 1, counter("phase.judged", decision): 1}


def _issues(result: VerificationResult) -> tuple[ValidationIssue, ...]:
    """The issues of the gates, and the verifier's errors as issues."""
    found = tuple(
        replace(issue, validator=gate.gate.partition(":")[0]) for gate in result.gates.results for issue in gate.issues
    )
    verifiers = tuple(
        ValidationIssue(code="NOT_VERIFIED", message=error, fix_hint="", validator="verifier")
        for error in result.errors
    )
    return found if found and result.ground is Ground.GATES else found + verifiers


def _stopped(turn: Turn, link: Link, stop: str) -> Move:
    """Cancelled, out of time, or handed over to another worker: then the same attempt is verified again."""
    if stop not in _CALLED_OFF:
        lost = AttemptLost(attempt=link.attempt, delivery=turn.delivery, during=stop or "stopped")
        return Move(
            attempt=link.attempt,
            next=link,
            events=[lost],
            counters={counter("delivery.handed_over"): 1},
        )
    outcome = _CALLED_OFF[stop]
    message = GIVEN_UP[outcome.value].get(turn.request.locale, GIVEN_UP[outcome.value]["en"])
    error = TurnError(code=outcome.value, message=message)
    return Move(attempt=link.attempt, outcome=outcome, answer=Answer(error=error))


def not_reached(turn: Turn, link: Link, before: str, outcome: str) -> Move:
    """The phase before did not pass, so this one is not run."""
    german = turn.request.locale == "de"
    text = (
        f"Nicht ausgeführt: die Phase davor ({before}) endete als {outcome}."
        if german
        else f"Not run: the phase before ({before}) ended as {outcome}."
    )
    error = TurnError(code="phase_not_reached", message=text)
    return Move(attempt=link.attempt, outcome=Outcome.CANCELLED, answer=Answer(error=error))
