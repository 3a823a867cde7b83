"""Which turn comes next: one that has waited before, but only so often in a row while others wait."""

from __future__ import annotations

from collections import deque

import pytest

from api_client.contract.tasks import CHECK_QUEUE, PREFERRED_QUEUE, RETRY, RUN, RUN_QUEUE, VALIDATE, Link, chain_of
from worker.turns.slots import Slots
from worker.turns.tasks.celery_internals import QueueOrder
from worker.turns.tasks.next_queue import PREFERRED_IN_A_ROW, NextQueue

QUEUES = (RUN_QUEUE, PREFERRED_QUEUE)


def taken(waiting: dict[str, int], count: int) -> list[str]:
    """From which queues a worker takes its next messages, where so many wait in each: by pops of as many as it may."""
    which, left = NextQueue(), {queue: deque(range(waiting.get(queue, 0))) for queue in QUEUES}
    found: list[str] = []
    while len(found) < count:
        order = which.order(QUEUES)
        queue = next(queue for queue in order if left[queue])
        assert which.most(order) > 0, "a pop takes one at least"
        for _ in range(min(which.most(order), len(left[queue]))):
            left[queue].pop()
            which.took(queue)
            found.append(queue)
    return found[:count]


def test_what_has_waited_before_goes_first() -> None:
    assert taken({RUN_QUEUE: 500, PREFERRED_QUEUE: 2}, 4) == [PREFERRED_QUEUE] * 2 + [RUN_QUEUE] * 2


def test_it_gets_three_of_four_places_while_others_wait() -> None:
    found = taken({RUN_QUEUE: 100, PREFERRED_QUEUE: 100}, 40)
    assert found[:4] == [PREFERRED_QUEUE] * 3 + [RUN_QUEUE]
    assert found.count(PREFERRED_QUEUE) == 30
    assert PREFERRED_IN_A_ROW == 3


def test_it_gets_every_place_while_nobody_else_waits() -> None:
    assert taken({PREFERRED_QUEUE: 20}, 20) == [PREFERRED_QUEUE] * 20


def test_a_worker_that_judges_asks_its_one_queue() -> None:
    assert NextQueue().order([CHECK_QUEUE]) == [CHECK_QUEUE]


def test_one_pop_takes_three_messages_at_most_and_one_when_preferred_ones_come_after_it() -> None:
    which = NextQueue()
    assert (which.most([CHECK_QUEUE]), which.most(which.order(QUEUES))) == (3, 3)
    which.took(PREFERRED_QUEUE)
    assert which.most(which.order(QUEUES)) == 2
    which.took(PREFERRED_QUEUE)
    which.took(PREFERRED_QUEUE)
    assert which.order(QUEUES) == [RUN_QUEUE, PREFERRED_QUEUE]
    assert which.most(which.order(QUEUES)) == 1


def test_preferred_turns_take_the_slots_of_the_other_runs() -> None:
    slots = Slots({RUN_QUEUE: 1, CHECK_QUEUE: 1})
    assert slots.order([RUN_QUEUE, PREFERRED_QUEUE, CHECK_QUEUE]) == [PREFERRED_QUEUE, RUN_QUEUE, CHECK_QUEUE]
    for _ in range(PREFERRED_IN_A_ROW):
        slots.took(PREFERRED_QUEUE)
    assert slots.order([PREFERRED_QUEUE, RUN_QUEUE]) == [RUN_QUEUE, PREFERRED_QUEUE]
    slots.enter(RUN_QUEUE)
    assert slots.order([RUN_QUEUE, PREFERRED_QUEUE, CHECK_QUEUE]) == [CHECK_QUEUE]


def test_kombu_says_from_which_queue_it_took_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    took: list[str] = []
    monkeypatch.setattr(QueueOrder, "took", staticmethod(took.append))
    order = QueueOrder([RUN_QUEUE])
    order.rotate(PREFERRED_QUEUE)
    assert took == [PREFERRED_QUEUE]


def test_retries_and_what_a_reaper_announces_are_preferred_and_first_runs_are_not() -> None:
    def queues(link: Link, *, preferred: bool = False) -> list[str]:
        return [item["queue"] for item in chain_of(link, "t", "s", preferred=preferred)]

    assert queues(Link(RUN, 1)) == [RUN_QUEUE, CHECK_QUEUE]
    assert queues(Link(RUN, 1), preferred=True) == [PREFERRED_QUEUE, CHECK_QUEUE]
    assert queues(Link(RETRY, 2)) == [PREFERRED_QUEUE, CHECK_QUEUE]
    assert queues(Link(VALIDATE, 1), preferred=True) == [CHECK_QUEUE]
