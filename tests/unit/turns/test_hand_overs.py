"""A run that its worker could not keep is delivered again: later each time, so many times, and then the turn ends."""

from __future__ import annotations

import pytest

from api_client.contract.tasks import FAIL, RUN, Link
from api_client.contract.turn import Turn, TurnRequest, TurnState
from worker.runners.base import Completion, RunResult, Verdict
from worker.turns.transitions.after_run import after_run
from worker.turns.transitions.backoff import MOST_HAND_OVERS, Delays, hand_over_delay
from worker.turns.transitions.moves import Move

LINK = Link(RUN, 1)


def after(stop: str, handed_over: int = 0, verdict: Verdict = Verdict.CANCELLED, **evidence: str) -> Move:
    request = TurnRequest(model="scripted", messages=({"role": "user", "content": "x"},), session_id="s")
    turn = Turn(
        turn_id="t0-1",
        epoch="e",
        state=TurnState.RUNNING,
        request=request,
        delivery=1,
        handed_over=handed_over,
        worker="worker-7-1@b",
        avoid="@a$",
    )
    result = RunResult(completion=Completion(verdict=verdict, reason="stopped", evidence=dict(evidence)))
    delays = Delays(first=1.0, busy=15.0)
    return after_run(turn, LINK, result, prompt="x", stop=stop, transient_retries=4, delays=delays)


def test_the_waits_grow_and_are_bounded() -> None:
    assert [hand_over_delay(number) for number in range(1, 10)] == [1, 2, 4, 8, 16, 32, 60, 60, 60]


@pytest.mark.parametrize(
    ("stop", "evidence", "during"),
    [("fenced", {}, "fenced"), ("", {"stopped": "guard died"}, "guard died"), ("", {}, "stopped")],
)
def test_a_run_that_was_not_kept_is_delivered_again_later_and_uses_up_no_attempt(
    stop: str, evidence: dict[str, str], during: str
) -> None:
    moves = [after(stop, number, **evidence) for number in range(MOST_HAND_OVERS)]
    assert {(move.next, move.state, move.run_ended) for move in moves} == {(LINK, TurnState.QUEUED, False)}
    assert [move.delay_ms for move in moves] == [int(1000 * hand_over_delay(number + 1)) for number in range(8)]
    assert [move.fields.values["handed_over"] for move in moves] == [number + 1 for number in range(8)]
    assert moves[0].events[0].during == during  # type: ignore[union-attr]


def test_after_the_last_one_the_turn_ends_as_an_error_that_says_so() -> None:
    move = after("fenced", MOST_HAND_OVERS)
    assert (move.next, move.delay_ms) == (Link(FAIL, 1), 0)
    failing = move.fields.values["failing"]
    assert (failing.outcome, failing.code) == ("error", "not_kept")
    assert "9 times in a row" in failing.reason


STRIKES = 5


def test_a_run_that_others_killed_is_delivered_again_on_another_machine_and_uses_up_no_attempt() -> None:
    moves = [after("", number, Verdict.INCOMPLETE, killed_by="others") for number in range(STRIKES - 1)]
    assert {(move.next, move.state, move.run_ended) for move in moves} == {(LINK, TurnState.QUEUED, False)}
    assert [move.delay_ms for move in moves] == [1000, 2000, 4000, 8000]
    assert {move.fields.values["avoid"] for move in moves} == {"@a$ @b$"}
    assert moves[0].events[0].during == "killed"  # type: ignore[union-attr]


def test_a_turn_whose_agents_are_killed_again_and_again_ends_as_an_error_that_says_so() -> None:
    move = after("", STRIKES - 1, Verdict.INCOMPLETE, killed_by="others")
    failing = move.fields.values["failing"]
    assert (move.next, failing.outcome, failing.code) == (Link(FAIL, 1), "error", "not_kept")
    assert "5 times in a row" in failing.reason
    assert (move.fields.values["avoid"], move.fields.values["handed_over"]) == ("", 0)


def test_a_run_that_ended_by_a_signal_of_its_own_uses_up_an_attempt() -> None:
    assert after("", 0, Verdict.INCOMPLETE).run_ended


def test_a_worker_that_ends_hands_over_at_once_and_is_not_counted() -> None:
    move = after("shutdown", MOST_HAND_OVERS)
    assert (move.next, move.delay_ms, "handed_over" in move.fields.values) == (LINK, 0, False)


def test_a_run_that_ended_begins_the_count_again() -> None:
    assert after("", 5, Verdict.COMPLETE).fields.values["handed_over"] == 0


@pytest.mark.parametrize(
    ("delivery", "strikes", "charged", "left"),
    [(2, 1, 1000, 0), (3, 2, 2000, 0), (3, 2, 2500, 500), (2, 0, 700, 700), (4, 3, 3000, 1000)],
)
def test_what_was_charged_for_lost_runs_is_given_back_when_their_run_is_adopted(
    delivery: int, strikes: int, charged: int, left: int
) -> None:
    """One attempt in three may use 1,000 tokens. A delivery before the adopted one really was lost."""
    request = TurnRequest(
        model="m",
        messages=({"role": "user", "content": "x"},),
        session_id="s",
        token_budget=3000,
        cost_budget_usd=0.003,
    )
    turn = Turn(
        turn_id="t0-1",
        epoch="e",
        state=TurnState.RUNNING,
        request=request,
        delivery=delivery,
        strikes=strikes,
        tokens_used=charged,
        cost_used=charged,
    )
    complete, adopted = Completion(verdict=Verdict.COMPLETE, reason="done"), 2 if delivery == 4 else 1
    used = {"input_tokens": 30, "output_tokens": 12, "cost_usd": 0.000042}
    result = RunResult(completion=complete, text="x", usage=used, adopted=adopted)
    move = after_run(turn, LINK, result, prompt="x", transient_retries=4, delays=Delays(first=1.0, busy=15.0))
    assert (move.fields.values["tokens_used"], move.fields.values["cost_used"]) == (left + 42, left + 42)
    assert move.facts.values["last_delivery"] == adopted
