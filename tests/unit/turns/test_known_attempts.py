"""What a holder knows of its attempts without asking the store again."""

from __future__ import annotations

from api_client.contract.issues.issue import ValidationIssue
from api_client.contract.record import attempt_of
from api_client.contract.tasks import RUN, Link
from api_client.contract.turn import Turn, TurnRequest, TurnState
from worker.turns.record.claim import Claim
from worker.turns.transitions.moves import Move, attempt_facts

REQUEST = TurnRequest(model="m", messages=({"role": "user", "content": "?"},), session_id="s")
RUN_ENDED = Move(
    attempt=1,
    facts=attempt_facts(
        prompt="?",
        text="Ja.",
        completion={"verdict": "complete", "evidence": {"exit_code": 0}},
        usage={"input_tokens": 3},
        issues=(ValidationIssue("X", "wrong", "right", line=3),),
        decision="retry",
        last_delivery=1,
    ),
)


def claim() -> Claim:
    turn = Turn(turn_id=f"t0-{'a' * 32}", epoch="e", state=TurnState.RUNNING, request=REQUEST)
    return Claim(turn, Link(RUN, 1), "token", 0.0, 60.0, attempts={})


def test_what_a_holder_wrote_of_a_new_attempt_is_what_a_reader_finds() -> None:
    held = claim()
    assert held.records_after(RUN_ENDED) == {1: attempt_of(1, RUN_ENDED.texts.facts)}


def test_an_attempt_that_changes_again_is_read_again() -> None:
    held = claim()
    held.attempts = {1: RUN_ENDED.texts.facts}
    held.records = {1: attempt_of(1, RUN_ENDED.texts.facts)}
    assert held.records_after(Move(attempt=1, facts=attempt_facts(answer="Nein."))) == {}
    assert held.records_after(Move(attempt=2, facts=attempt_facts(text="Nein."))).keys() == {1, 2}
