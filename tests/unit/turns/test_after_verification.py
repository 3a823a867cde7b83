"""What follows from verifications that come to no end: the tries of one attempt are not the next one's."""

from __future__ import annotations

from dataclasses import replace

import pytest

from api_client.contract.attempt import AttemptRecord
from api_client.contract.tasks import FAIL, PHASE_RUN, PHASE_VERIFY, Link
from api_client.contract.turn import Failing, Outcome, Turn, TurnRequest, TurnState
from worker.turns.transitions.after_verification import VERIFIER_TRIES, after_verification
from worker.turns.transitions.moves import Move
from worker.verification import Ground, VerificationResult

_SILENT = VerificationResult(success=False, errors=["no verdict"], ground=Ground.NO_VERDICT)
_REJECTED = VerificationResult(success=False, errors=["no docstring"], ground=Ground.VERDICT)


@pytest.fixture
def turn() -> Turn:
    request = TurnRequest(model="m", messages=(), session_id="s", phase={"id": "build"}, max_attempts=3)
    return Turn(turn_id="t0-" + "0" * 32, epoch="e", state=TurnState.VALIDATING, request=request)


def verified(turn: Turn, *results: VerificationResult) -> tuple[Turn, Move]:
    """The turn after these verifications of its attempt, as far as its record tells of their tries; the last move."""
    for result in results:
        record = AttemptRecord(number=turn.attempt, text="Fertig.")
        move = after_verification(turn, Link(PHASE_VERIFY, turn.attempt), record, result, stop="")
        turn = replace(turn, unverified=move.fields.values.get("unverified", turn.unverified))
    return turn, move


def test_verifiers_without_a_verdict_do_not_cost_the_next_attempt_its_tries(turn: Turn) -> None:
    silent = [_SILENT] * (VERIFIER_TRIES - 1)
    turn, move = verified(turn, *silent, _REJECTED)
    assert move.next == Link(PHASE_RUN, 2)
    turn, move = verified(replace(turn, attempt=2), *silent)
    assert move.next == Link(PHASE_VERIFY, 2), "attempt 2 has all its tries"
    _, move = verified(turn, _SILENT)
    assert move.next == Link(FAIL, 2)


def test_a_verifier_is_asked_again_later_and_later(turn: Turn) -> None:
    delays = [verified(replace(turn, unverified=tries), _SILENT)[1].delay_ms for tries in range(VERIFIER_TRIES - 1)]
    assert delays == [1000, 2000]


def test_gates_that_may_not_run_on_this_worker_end_the_turn_with_the_reason_and_cost_no_attempt(turn: Turn) -> None:
    refused = VerificationResult(success=False, errors=["no box here"], ground=Ground.REFUSED)
    _, move = verified(turn, refused)
    assert (move.next, move.judged) == (Link(FAIL, 1), False)
    assert move.fields.values["failing"] == Failing(outcome=Outcome.ERROR, code="config", reason="no box here")
