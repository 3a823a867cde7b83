"""The moves that suspend a turn and resume it, whatever it waits for. Pure; each kind adds its own to them."""

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
    """The move of a run that reported an interruption: the turn waits for its answer."""
    return kind_of(asked).suspend(turn, move, asked)


def resumed(turn: Turn, number: int, best: AttemptRecord | None) -> Move:
    """What follows from the turn's ``decision``; ``number`` is the attempt that it was suspended after.

    ``best`` is the attempt that was proposed, if one was. Raises ``ValueError``: nothing was asked, or decided.
    """
    asked, decision = turn.interruption, turn.decision
    if asked is None or decision is None:
        raise ValueError(f"turn {turn.turn_id} has no question, or no decision on it")
    move = kind_of(asked).resume(turn, asked, decision, number, best)
    if move.outcome is not Outcome.FAILED or move.answer.error is None:
        return move
    return replace(move, end_counters=gave_up_counters(turn, move.answer.error.issues))


def run_ended(turn: Turn, move: Move, used: str, *, whole: bool) -> Move:
    """The move of a run that has ended, with what becomes of the question that it went on from.

    ``used``: the run's nonce, if it used up the answer. ``whole``: the run ended with a whole answer.
    """
    if turn.interruption is None:
        return move
    if not asks_anew(move):
        move = replace(move, fields=move.fields | progress(answer_used=used or turn.answer_used))
    is_used = bool(used or turn.answer_used)
    return kind_of(turn.interruption).end(turn, move, turn.interruption, used=is_used, whole=whole)


def rescued(turn: Turn, move: Move, failure: Failure) -> Move:
    """The move that asks somebody instead of giving the turn up; ``move`` where nobody is to be asked."""
    return next((found for kind in kinds() if (found := kind.rescue(turn, move, failure))), move)
