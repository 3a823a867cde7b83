"""An announcement that still waits in its queue is not made again, and one that was lost is."""

from __future__ import annotations

import pytest

from api_client.contract.tasks import CHECK_QUEUE, PREFERRED_QUEUE, RUN_QUEUE
from worker.turns.leases.announced import Announced, Head, announced, look_again_at

NOW, DELAY = 1_000_000, 5_000
UNCLAIMED = {"state": "queued", "next": "turn.run/1", "announced": "1"}


def turn(at: int, **more: int) -> Announced:
    return Announced(**{"turn_id": "t", "score": 0.0, "at": at, "queue": RUN_QUEUE, "deadline_at": 0, **more})  # type: ignore[arg-type]


def test_while_the_queues_head_was_announced_earlier_nothing_is_announced() -> None:
    later = look_again_at(turn(NOW - 10_000), Head(NOW - 60_000), NOW, DELAY)
    assert later == NOW + 50_000, "when its message gets to the head, if the queue goes on as it does"


def test_the_head_itself_is_not_announced_again() -> None:
    assert look_again_at(turn(NOW - 10_000), Head(NOW - 10_000), NOW, DELAY) == NOW + DELAY


@pytest.mark.parametrize("head", [None, Head(NOW - 9_999)])
def test_a_message_that_is_not_there_any_more_is_announced_again(head: Head | None) -> None:
    assert look_again_at(turn(NOW - 10_000), head, NOW, DELAY) is None


def test_behind_a_message_that_is_worth_nothing_it_is_looked_at_soon_again() -> None:
    assert look_again_at(turn(NOW - 10_000), Head(None), NOW, DELAY) == NOW + DELAY


def test_it_is_looked_at_again_before_its_deadline_and_within_a_bounded_time() -> None:
    waiting = turn(NOW, deadline_at=NOW + 7_000)
    assert look_again_at(waiting, Head(NOW - 60_000), NOW, DELAY) == NOW + 7_000
    assert look_again_at(turn(NOW), Head(0), NOW, DELAY) == NOW + 64 * DELAY
    assert look_again_at(turn(NOW - 1, deadline_at=NOW - 1), Head(0), NOW, DELAY) is None, "it has expired"


def test_after_the_clock_was_set_back_it_is_announced() -> None:
    assert look_again_at(turn(NOW + 3_600_000), Head(NOW - 60_000), NOW, DELAY) is None


@pytest.mark.parametrize(("times", "delays"), [("1", 1), ("2", 2), ("4", 8), ("20", 64)])
def test_when_it_was_announced_follows_from_when_it_is_due(times: str, delays: int) -> None:
    found = announced("t", float(NOW), UNCLAIMED | {"announced": times}, DELAY)
    assert found is not None
    assert found.at == NOW - delays * DELAY


@pytest.mark.parametrize("put_off", [False, True], ids=["", "put off"])
@pytest.mark.parametrize(("created_at", "queue"), [(NOW - DELAY, RUN_QUEUE), (NOW - DELAY - 1, PREFERRED_QUEUE)])
def test_what_was_announced_after_its_submit_is_in_the_preferred_queue(
    created_at: int, queue: str, put_off: bool
) -> None:
    noted = {"announced": "0", "announced_at": str(NOW - DELAY)} if put_off else {}
    found = announced("t", float(NOW), UNCLAIMED | noted | {"created_at": str(created_at)}, DELAY)
    assert found is not None
    assert found.queue == queue


def test_one_that_was_put_off_remembers_when_it_was_announced() -> None:
    found = announced("t", float(NOW), UNCLAIMED | {"announced": "0", "announced_at": "7"}, DELAY)
    assert found is not None
    assert (found.at, found.queue) == (7, RUN_QUEUE)
    judged = announced("t", float(NOW), {"state": "ran", "next": "turn.validate/1"}, DELAY)
    assert judged is not None
    assert judged.queue == CHECK_QUEUE


@pytest.mark.parametrize(
    "other",
    [
        {"token": "somebody"},
        {"state": "parked"},
        {"state": "finished", "next": ""},
        {"not_before": str(NOW - 1)},
        {"double_text": "interrupt"},
        {"next": "no link"},
    ],
)
def test_what_is_held_parked_delayed_or_interrupts_is_left_to_the_reaper(other: dict[str, str]) -> None:
    assert announced("t", float(NOW), UNCLAIMED | other, DELAY) is None
