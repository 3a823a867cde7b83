"""Which turns could run now, and since when."""

from __future__ import annotations

from typing import Any

import pytest

from api_client.contract.tasks import CHECK_QUEUE, RUN_QUEUE
from api_client.workers.reason import FIELDS, FOR_A_WORKER, Facts, Row, row, waiting

NOW, DELAY = 10_000.0, 5.0  # seconds


def stored(turn_id: str = "t0-1", *, due: float = 0.0, **more: object) -> Row:
    """A record as the store has it; times in ms."""
    fields: dict[str, object] = {"state": "queued", "session_id": "s", "next": "turn.run/1", "created_at": 1, **more}
    found = row(turn_id, due, [str(fields[name]).encode() if name in fields else None for name in FIELDS])
    assert found is not None
    return found


def ready(*rows: Row) -> list[tuple[str, str, float]]:
    found = waiting(rows, Facts(at=NOW, announce_seconds=DELAY))
    return [(each.turn_id, each.queue, each.since) for each in found if each.wait.reason in FOR_A_WORKER]


def test_a_turn_that_nobody_took_waits_since_it_was_submitted() -> None:
    assert ready(stored(created_at=4_000_000, due=4_005_000)) == [("t0-1", RUN_QUEUE, 4_000.0)]


def test_a_turn_that_is_to_be_judged_waits_for_another_queue() -> None:
    assert ready(stored(state="ran", next="turn.validate/1", due=9_005_000)) == [("t0-1", CHECK_QUEUE, 9_000.0)]


@pytest.mark.parametrize("first", [{"state": "parked"}, {"state": "running", "token": "x"}, {"token": "x"}])
def test_what_lies_behind_a_held_parked_or_paused_turn_of_its_session_does_not_wait_for_a_worker(
    first: dict[str, Any],
) -> None:
    behind = stored("t0-2", created_at=2)
    assert ready(stored(**first), behind) == ready(behind, stored(**first)) == []


def test_of_each_session_the_head_alone_waits() -> None:
    second, first, other = stored("t0-2", created_at=2), stored("t0-1"), stored("t0-3", session_id="t", due=9_000_000)
    assert [turn_id for turn_id, *_ in ready(second, first, other)] == ["t0-1", "t0-3"]


def test_a_delay_that_is_not_over_is_no_wait_and_one_that_is_over_counts_from_its_end() -> None:
    assert ready(stored(not_before=10_001_000)) == []
    [(_, _, since)] = ready(stored(not_before=9_990_000, announced=2, due=10_000_000))
    assert since == 9_990.0


def test_a_retry_waits_since_it_was_decided_not_since_its_turn_was_submitted() -> None:
    [(_, _, since)] = ready(stored(next="turn.retry/2", created_at=1_000_000, due=9_999_000))
    assert since == 9_994.0


@pytest.mark.parametrize("times", [1, 2, 5, 7, 8, 12])
def test_announcing_a_turn_again_does_not_make_its_wait_shorter(times: int) -> None:
    due = 9_000.0
    for announced in range(1, times + 1):
        due += DELAY * 2 ** min(announced - 1, 6)  # as reap.lua does
    [(_, _, since)] = ready(stored(announced=times, due=due * 1000))
    assert since == 9_000.0


def test_a_turn_whose_announcement_waits_in_the_queue_waits_since_that_was_made() -> None:
    assert ready(stored(announced=0, announced_at=7_000_000, due=99_000_000)) == [("t0-1", RUN_QUEUE, 7_000.0)]


@pytest.mark.parametrize("fields", [{}, {"state": b"finished"}, {"state": b"queued", "created_at": b"x"}])
def test_a_turn_that_is_gone_ended_or_damaged_is_left_out(fields: dict[str, bytes]) -> None:
    assert row("t0-1", 0.0, [fields.get(name) for name in FIELDS]) is None
