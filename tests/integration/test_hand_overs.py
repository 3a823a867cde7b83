"""A turn whose runs no worker can keep: each hand-over waits longer, and after the last one it ends and says why."""

import pytest

from api_client.contract.completion import Completion, Verdict
from api_client.contract.turn import Outcome
from tests.integration.engine import FIRST, GOOD, Bench, Play, says
from worker.runners.base import AgentEvent, Emit, Order, RunResult, Stop
from worker.turns.transitions import after_run
from worker.turns.transitions.backoff import MOST_HAND_OVERS


def loses_its_guard(order: Order, emit: Emit, stop: Stop) -> RunResult:
    emit(AgentEvent(kind="output", text="Das Fel"))
    evidence = {"stopped": "guard died"}
    return RunResult(completion=Completion(verdict=Verdict.CANCELLED, reason="stopped", evidence=evidence))


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The hand-overs that were waited for; they are short."""
    found: list[int] = []

    def short(number: int) -> float:
        found.append(number)
        return 0.001

    monkeypatch.setattr(after_run, "hand_over_delay", short)
    return found


async def carried_out(bench: Bench, plays: list[Play]) -> str:
    turn_id = await bench.submit(*plays)
    while bench.runner.plays:
        bench.carry_out(turn_id)
    return turn_id


async def test_after_the_last_hand_over_the_turn_ends_as_an_error_that_says_so(bench: Bench, waits: list[int]) -> None:
    turn_id = await carried_out(bench, [loses_its_guard] * (MOST_HAND_OVERS + 1))
    turn = await bench.client.reader.read_turn(turn_id)
    assert (turn.outcome, turn.error.code, turn.attempt) == (Outcome.ERROR, "not_kept", 1)
    assert "could not keep the agent running" in turn.error.message
    assert f"{MOST_HAND_OVERS + 1} times in a row" in turn.error.reason
    assert waits == list(range(1, MOST_HAND_OVERS + 1))
    assert len(bench.runner.orders) == MOST_HAND_OVERS + 1, "no agent was started beyond the cap"
    lost = [event.data["during"] for event in await bench.events(turn) if event.kind == "attempt.lost"]
    assert lost == ["guard died"] * MOST_HAND_OVERS


async def test_a_turn_that_is_kept_in_the_end_passes_with_its_first_attempt(bench: Bench, waits: list[int]) -> None:
    turn_id = await carried_out(bench, [*[loses_its_guard] * MOST_HAND_OVERS, says(GOOD)])
    turn = await bench.client.reader.read_turn(turn_id)
    assert (turn.outcome, turn.response, turn.attempt) == (Outcome.PASSED, GOOD, 1)
    assert (turn.strikes, turn.handed_over) == (0, 0)
    assert FIRST.attempt == 1
