"""How many turns one process works on, and when it takes no more messages."""

from __future__ import annotations

from api_client.contract.tasks import CHECK_QUEUE, PREFERRED_QUEUE, RUN_QUEUE
from worker.turns.slots import Slots

BOTH = (RUN_QUEUE, CHECK_QUEUE)


def slots(run: int = 2, check: int = 1) -> tuple[Slots, list[str]]:
    woken: list[str] = []
    return Slots({RUN_QUEUE: run, CHECK_QUEUE: check}, lambda: woken.append("woken")), woken


def test_messages_are_taken_from_queues_with_a_free_slot_alone() -> None:
    made, _ = slots(run=1)
    assert made.order(BOTH) == [RUN_QUEUE, CHECK_QUEUE]
    seat = made.enter(RUN_QUEUE)
    assert made.order(BOTH) == [CHECK_QUEUE]
    seat.leave()
    assert made.order(BOTH) == [RUN_QUEUE, CHECK_QUEUE]


def test_no_more_messages_are_taken_at_once_than_there_are_free_slots() -> None:
    made, _ = slots(run=2, check=9)
    assert [made.most([RUN_QUEUE]), made.most([PREFERRED_QUEUE, RUN_QUEUE]), made.most([CHECK_QUEUE])] == [2, 2, 3]
    made.enter(RUN_QUEUE)
    assert made.most([PREFERRED_QUEUE, RUN_QUEUE]) == 1
    made.enter(RUN_QUEUE)
    assert made.most([RUN_QUEUE]) == 1, "no pop asks for nothing"


def test_the_receiver_is_woken_only_when_a_full_queue_has_a_slot_again() -> None:
    made, woken = slots(run=2)
    seats = [made.enter(RUN_QUEUE), made.enter(RUN_QUEUE)]
    seats[0].leave()
    assert woken == ["woken"]
    seats[1].leave()
    assert woken == ["woken"]


def test_a_message_that_came_too_late_to_be_left_alone_has_a_seat_beyond_the_limit() -> None:
    made, woken = slots(run=1)
    seats = [made.enter(RUN_QUEUE), made.enter(RUN_QUEUE)]
    seats[0].leave()
    assert made.free(RUN_QUEUE) == 0
    seats[1].leave()
    assert (made.free(RUN_QUEUE), woken) == (1, ["woken", "woken"])


def test_a_turn_that_is_judged_in_place_keeps_its_slot_to_run_again_and_takes_none_from_other_answers() -> None:
    made, _ = slots(run=1, check=1)
    seat = made.enter(RUN_QUEUE)
    assert seat.may_go_on(CHECK_QUEUE)
    seat.settle(CHECK_QUEUE)
    assert made.order(BOTH) == [CHECK_QUEUE]
    assert seat.may_go_on(RUN_QUEUE)
    seat.settle(RUN_QUEUE)
    assert made.order(BOTH) == [CHECK_QUEUE]


def test_a_turn_that_was_judged_does_not_run_again_in_place_where_no_slot_is_free_for_it() -> None:
    made, _ = slots(run=1)
    running = made.enter(RUN_QUEUE)
    assert not made.enter(CHECK_QUEUE).may_go_on(RUN_QUEUE)
    running.leave()


def test_a_turn_that_was_taken_to_be_judged_gives_that_slot_back_when_it_runs_again() -> None:
    made, _ = slots(run=1, check=1)
    seat = made.enter(CHECK_QUEUE)
    assert seat.may_go_on(RUN_QUEUE)
    seat.settle(RUN_QUEUE)
    assert made.order(BOTH) == [CHECK_QUEUE]
    seat.leave()
    assert made.order(BOTH) == [RUN_QUEUE, CHECK_QUEUE]
