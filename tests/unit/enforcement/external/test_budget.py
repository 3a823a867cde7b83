"""What rules use of models is charged to the turn."""

from __future__ import annotations

from api_client.contract.counters import counter
from api_client.contract.turn import Turn, TurnRequest, TurnState
from worker.enforcement.validators.services import NOTHING_SPENT, JudgingCost
from worker.turns.transitions.moves import Move, progress
from worker.turns.transitions.usage import with_judging


def test_a_judges_tokens_and_money_are_added_to_the_turns_own() -> None:
    request = TurnRequest(session_id="s", model="m", messages=({"role": "user", "content": "x"},), validators=())
    turn = Turn(turn_id="t", request=request, epoch="e", state=TurnState.VALIDATING, tokens_used=100, cost_used=5)
    move = Move(attempt=1, fields=progress(best=2), counters={counter("tokens.input", "m"): 1})
    charged = with_judging(turn, move, JudgingCost(input_tokens=10, output_tokens=2, cost_usd=0.001))
    assert charged.fields == progress(best=2, tokens_used=112, cost_used=1005)
    assert charged.counters[counter("tokens.input", "m")] == 11
    assert with_judging(turn, move, NOTHING_SPENT) is move
