from __future__ import annotations

from api_client.contract.event_kinds import TurnMended
from api_client.contract.turn import Outcome
from worker.turns.transitions.accepted import Accepted
from worker.turns.transitions.moves import Answer, Move, attempt_facts, progress


def test_what_was_accepted_is_read_again_as_it_was_written() -> None:
    move = Move(
        attempt=2,
        facts=attempt_facts(mended="ä"),
        fields=progress(best=2),
        events=[TurnMended(attempt=2, changes=("x",), fixed=(), step="done", step_source="inferred")],
        counters={"turn.mended": 1},
        end_counters={"turn.repaired": 1},
        judged=True,
        outcome=Outcome.PASSED_BY_FALLBACK,
        answer=Answer(response="Grüße\n", step="done", step_source="inferred"),
    )
    accepted = Accepted(move=move, delivery="t0-a-2-3", mended={"ADR-001.md": "# ADR"})
    assert Accepted.from_json(accepted.to_json({}), lambda _: {}) == accepted
