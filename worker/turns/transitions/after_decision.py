"""The move after a decision on a parked turn: a pure function to a move. No clock, no store, no file.

The answer a person accepts is marked as theirs (``passed_by_human``): the checks still find errors in it.
"""

from __future__ import annotations

from dataclasses import replace

from api_client.contract.attempt_record import AttemptRecord
from api_client.contract.escalation import DecisionKind, InboxDecision
from api_client.contract.messages import asked_again, line_of, rejected
from api_client.contract.turn import Outcome, Turn, TurnState
from api_client.contract.turn_error import TurnError
from api_client.contract.work import find_work
from api_client.turns.record.moves import Answer, Move, again, attempt_facts, progress, retrying
from worker.enforcement.documents.step import step_of
from worker.turns.transitions import tool_questions
from worker.turns.transitions.after_judging import gave_up_counters


def after_decision(turn: Turn, number: int, best: AttemptRecord | None) -> Move:
    """Return what follows from the turn's ``decision``; ``number`` is the attempt it was parked after.

    ``best`` is the one that an approval accepts; None when there is none. Raises ``ValueError``: nothing was decided.
    """
    decision = turn.decision
    if decision is None:
        raise ValueError(f"turn {turn.turn_id} has no decision")
    kind = decision.kind
    if question := turn.asked:
        return tool_questions.answered(turn, question, decision, number)
    if kind is DecisionKind.RETRY:
        return _asks_again(turn, number, decision.note, best)
    if kind is DecisionKind.EDIT and find_work(turn.request).answers_in_text:
        return _accepts(turn, number, decision.text)
    if kind is not DecisionKind.REJECT and best is not None:
        return _accepts(turn, best.number, best.mended or best.answer or best.text)
    return _rejects(turn, decision, number, best)


def _accepts(turn: Turn, number: int, text: str) -> Move:
    step, source = step_of(text) if find_work(turn.request).answers_in_text else ("", "")
    return Move(
        attempt=number,
        facts=attempt_facts(decision="accept"),
        outcome=Outcome.PASSED_BY_HUMAN,
        answer=Answer(response=text, step=step, step_source=source),
    )


def _asks_again(turn: Turn, number: int, note: str, best: AttemptRecord | None) -> Move:
    """Another set of attempts, with what the person said; if it fails too, it comes back to the inbox."""
    issues = (best.remaining or best.issues) if best else ()
    hints = [line_of(issue) for issue in issues]
    feedback = asked_again(note, turn.request.locale, hints)
    allowed = number + turn.request.max_attempts
    asking = replace(retrying(turn, number + 1, "decided", feedback=feedback), max_attempts=allowed)
    return Move(
        attempt=number,
        state=TurnState.QUEUED,
        next=again(turn, number + 1),
        fields=progress(allowed=allowed, transients=0),
        facts=attempt_facts(feedback=feedback),
        events=[asking],
    )


def _rejects(turn: Turn, decision: InboxDecision, number: int, best: AttemptRecord | None) -> Move:
    """The honest end: why it was handed to a person, and that nobody accepted it."""
    issues = (best.remaining or best.issues) if best else ()
    lines = [line_of(issue) for issue in issues]
    error = TurnError(
        code="undecided" if decision.timed_out else "rejected",
        message=rejected(turn.request.locale, lines, note=decision.note, timed_out=decision.timed_out),
        reason=turn.failing.reason if turn.failing else "",
        issues=issues,
    )
    gave_up = gave_up_counters(turn, issues)
    return Move(attempt=number, outcome=Outcome.FAILED, answer=Answer(error=error), end_counters=gave_up)
