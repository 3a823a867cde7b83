"""Pure transitions that suspend and resume a turn for an interruption, a question that a person must answer."""

from __future__ import annotations

from dataclasses import replace

from api_client.contract.attempt_record import AttemptRecord
from api_client.contract.interruption import Interruption
from api_client.contract.turn import Outcome, Turn
from api_client.turns.record.transition import Transition, progress
from worker.turns.interruptions.kind import FailedTurn, asks_again
from worker.turns.interruptions.registry import find_kind, list_kinds
from worker.turns.transitions.validation_counters import count_gave_up


def suspend_turn(turn: Turn, transition: Transition, interruption: Interruption) -> Transition:
    """Return the transition that suspends a turn until a person has answered the agent's question."""
    return find_kind(interruption).suspend_turn(turn, transition, interruption)


def resume_turn(turn: Turn, attempt: int, shown_attempt: AttemptRecord | None) -> Transition:
    """Return the transition that resumes a suspended turn, as the person's recorded decision says.

    ``shown_attempt`` is the attempt whose answer the person was shown. Raises ``ValueError`` without an open question
    or a decision.
    """
    interruption, decision = turn.interruption, turn.decision
    if interruption is None or decision is None:
        raise ValueError(f"turn {turn.turn_id} has no question, or no decision on it")
    transition = find_kind(interruption).resume_turn(turn, interruption, decision, attempt, shown_attempt)
    if transition.outcome is not Outcome.FAILED or transition.answer.error is None:
        return transition
    return replace(transition, end_counters=count_gave_up(turn, transition.answer.error.issues))


def settle_question(turn: Turn, transition: Transition, run_nonce: str, *, answer_complete: bool) -> Transition:
    """Return the transition after a resumed run. The answered question is removed unless it is still needed.

    ``run_nonce`` names the run if it used the person's answer, and is empty otherwise.
    """
    if turn.interruption is None:
        return transition
    if not asks_again(transition):
        transition = replace(transition, fields=transition.fields | progress(answer_used=run_nonce or turn.answer_used))
    is_used = bool(run_nonce or turn.answer_used)
    return find_kind(turn.interruption).end_run(
        turn, transition, turn.interruption, decision_used=is_used, answer_complete=answer_complete
    )


def rescue_turn(turn: Turn, transition: Transition, failure: FailedTurn) -> Transition:
    """Return a transition that asks a person instead of failing the turn, or ``transition`` if nobody can be asked."""
    return next((found for kind in list_kinds() if (found := kind.rescue_turn(turn, transition, failure))), transition)
