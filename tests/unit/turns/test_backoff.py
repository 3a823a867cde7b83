"""How long a turn waits after a passing error: as the service asks, else longer each time, within the deadline."""

from __future__ import annotations

import pytest

from api_client.contract.tasks import FAIL, RUN, Link
from api_client.contract.turn import Failing, Outcome, Turn, TurnRequest, TurnState
from worker.runners.base import Completion, ErrorKind, RunResult, Verdict
from worker.turns.transitions.after_run import after_run
from worker.turns.transitions.backoff import Delays, delay_after

DELAYS = Delays(first=1.0, busy=15.0, left=3600.0)


def passing(*, busy: bool = False, retry_after: float = 0.0) -> Completion:
    return Completion(verdict=Verdict.ERROR, kind=ErrorKind.TRANSIENT, reason="429", busy=busy, retry_after=retry_after)


def waits(completion: Completion, delays: Delays = DELAYS) -> list[float | None]:
    return [delay_after(completion, number, delays) for number in range(6)]


def test_a_busy_service_is_left_alone_for_15_30_60_and_120_seconds() -> None:
    assert waits(passing(busy=True)) == [15, 30, 60, 120, 120, 120]


def test_other_passing_errors_are_tried_again_soon() -> None:
    assert waits(passing()) == [1, 2, 4, 8, 16, 32]


def test_a_wait_the_service_asks_for_is_kept() -> None:
    assert waits(passing(retry_after=7)) == [7] * 6
    assert waits(passing(busy=True, retry_after=90)) == [90, 90, 90, 120, 120, 120]
    assert waits(passing(busy=True, retry_after=3))[:3] == [3, 30, 60]


def test_our_own_wait_leaves_time_for_one_more_try() -> None:
    assert waits(passing(busy=True), Delays(first=1.0, busy=15.0, left=50.0)) == [15, 25, 25, 25, 25, 25]


def test_a_lost_session_is_begun_anew_at_once() -> None:
    lost = Completion(verdict=Verdict.ERROR, kind=ErrorKind.SESSION_LOST, reason="gone")
    assert waits(lost) == [0] * 6


def after(completion: Completion, left: float, transients: int = 0) -> tuple[Link | None, int, Failing | None]:
    request = TurnRequest(model="m", messages=({"role": "user", "content": "x"},), session_id="s")
    turn = Turn(turn_id="t0-1", epoch="e", state=TurnState.RUNNING, request=request, delivery=1, transients=transients)
    move = after_run(
        turn,
        Link(RUN, 1),
        RunResult(completion=completion),
        prompt="x",
        transient_retries=4,
        delays=Delays(first=1.0, busy=15.0, left=left),
    )
    return move.next, move.delay_ms, move.fields.values.get("failing")


@pytest.mark.parametrize(("before", "milliseconds"), [(0, 15_000), (1, 30_000), (2, 60_000), (3, 120_000)])
def test_the_turn_waits_as_long(before: int, milliseconds: int) -> None:
    assert after(passing(busy=True), 3600.0, before)[:2] == (Link(RUN, 1), milliseconds)


def test_a_wait_beyond_the_deadline_ends_the_turn_at_once_and_says_so() -> None:
    link, delay, failing = after(passing(busy=True, retry_after=18_000), 3000.0)
    assert (link, delay) == (Link(FAIL, 1), 0)
    reason = "429; the service asks to wait 18000 s, and the turn has 3000 s left"
    assert failing == Failing(outcome=Outcome.ERROR, code="transient", reason=reason)
