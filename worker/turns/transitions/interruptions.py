"""Pure transitions that suspend and resume a turn; each kind of interruption adds its own changes."""

from __future__ import annotations

from dataclasses import replace

from api_client.contract.attempt_record import AttemptRecord
from api_client.contract.interruption import Interruption
from api_client.contract.turn import Outcome, Turn
from api_client.turns.record.moves import Move, progress
from worker.turns.interruptions.kind import Failure, asks_anew
from worker.turns.interruptions.registry import kind_of, kinds
from worker.turns.transitions.judged_counters import gave_up_counters


def suspended(turn: Turn, move: Move, asked: Interruption) -> Move:
    """Return the transition that suspends a turn until a person has answered the run's question."""
    return kind_of(asked).suspend(turn, move, asked)


def resumed(turn: Turn, number: int, best: AttemptRecord | None) -> Move:
    """Return the transition that continues a suspended turn according to a person's decision.

    Args:
        turn: the suspended turn.
        number: the attempt that was interrupted.
        best: the attempt proposed for acceptance, if any.

    Raises:
        ValueError: the turn has no open question, or no decision.
    """
    asked, decision = turn.interruption, turn.decision
    if asked is None or decision is None:
        raise ValueError(f"turn {turn.turn_id} has no question, or no decision on it")
    move = kind_of(asked).resume(turn, asked, decision, number, best)
    if move.outcome is not Outcome.FAILED or move.answer.error is None:
        return move
    return replace(move, end_counters=gave_up_counters(turn, move.answer.error.issues))


def run_ended(turn: Turn, move: Move, used: str, *, whole: bool) -> Move:
    """Return the transition of a resumed run, without its question unless the same attempt continues.

    ``used`` is the run's nonce if the run used up the answer; ``whole`` says that the run's answer is complete.
    """
    if turn.interruption is None:
        return move
    if not asks_anew(move):
        move = replace(move, fields=move.fields | progress(answer_used=used or turn.answer_used))
    is_used = bool(used or turn.answer_used)
    return kind_of(turn.interruption).end(turn, move, turn.interruption, used=is_used, whole=whole)


def rescued(turn: Turn, move: Move, failure: Failure) -> Move:
    """Return a transition that asks a person instead of failing the turn, or ``move`` if nobody can be asked."""
    return next((found for kind in kinds() if (found := kind.rescue(turn, move, failure))), move)
