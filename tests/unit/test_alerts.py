"""What is said to be stuck, and what is not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from api_client.contract.tasks import CHECK_QUEUE, RUN_QUEUE
from api_client.contract.values.worker_reports import WorkerReport
from api_client.contract.words.store_refusals import Refusal
from api_client.workers.alerts import STILL_SECONDS, STUCK_SECONDS, Alert, Fleet, alerts, fleet_of, stuck
from api_client.workers.waiting import Waiting

NOW = 1_000_000.0
WELL = Fleet(agents=1, judges=1, slots=4, free=2, stalled=(), ready={RUN_QUEUE: 0.0, CHECK_QUEUE: 0.0})
LONG = Waiting(turn_id="t0-1", queue=RUN_QUEUE, since=NOW - STUCK_SECONDS - 1)


def worker(**more: Any) -> WorkerReport:
    report = WorkerReport(name="run-1", queues=(RUN_QUEUE,), slots=4, free=3, at=NOW - 1)
    return replace(report, **more)


def said(fleet: Fleet, **facts: Any) -> list[Alert]:
    return [*alerts(fleet, **{"now": NOW, "refusal": None, "overdue": 0, "stuck": (), **facts})]


def test_a_fleet_counts_who_was_heard_of_just_now() -> None:
    both = worker(name="both", queues=[RUN_QUEUE, CHECK_QUEUE], check_free=2, took_at=3.0)
    reports = [worker(took_at=5.0), worker(at=NOW - 60), both]
    ready = {RUN_QUEUE: 5.0, CHECK_QUEUE: 3.0}
    assert fleet_of(reports, NOW) == Fleet(agents=2, judges=1, slots=8, free=6, stalled=(), ready=ready)


def test_a_worker_whose_agents_are_all_at_work_may_still_judge() -> None:
    reports = [worker(queues=[RUN_QUEUE, CHECK_QUEUE], free=0, check_free=1)]
    assert set(fleet_of(reports, NOW).ready) == {CHECK_QUEUE}


def test_slots_of_a_worker_that_takes_no_messages_are_not_free() -> None:
    assert fleet_of([worker(stalled=True)], NOW) == Fleet(agents=1, judges=0, slots=4, free=0, stalled=("run-1",))


def test_a_turn_is_stuck_when_it_could_run_a_slot_is_free_and_nothing_is_taken() -> None:
    assert [*stuck(WELL, [LONG], NOW)] == [LONG]


@pytest.mark.parametrize(
    ("fleet", "turn"),
    [
        (WELL, replace(LONG, since=NOW - STUCK_SECONDS + 1)),  # not long enough
        (replace(WELL, ready={CHECK_QUEUE: 0.0}), LONG),  # every slot of its queue is at work
        (replace(WELL, ready={RUN_QUEUE: NOW - STILL_SECONDS + 1}), LONG),  # its turn will come: others are taken
    ],
)
def test_a_turn_that_waits_for_its_place_is_not_stuck(fleet: Fleet, turn: Waiting) -> None:
    assert not [*stuck(fleet, [turn], NOW)]


@pytest.mark.parametrize(
    ("fleet", "facts", "words"),
    [
        (Fleet(agents=0, judges=1, slots=0, free=0, stalled=()), {}, "no worker is there to run agents"),
        (Fleet(agents=1, judges=0, slots=4, free=4, stalled=()), {}, "no worker is there to judge"),
        (Fleet(agents=1, judges=1, slots=4, free=0, stalled=("run-1",)), {}, "takes no messages: run-1"),
        (replace(WELL, sick={"b": "/data cannot be written"}), {}, "b carries out no turns: /data cannot be written"),
        (replace(WELL, quiet=("run-1",)), {}, "every worker that runs agents was ordered to take nothing new"),
        (WELL, {"overdue": 3}, "3 turns were due"),
        (WELL, {"stuck": (LONG,)}, "1 turns could run and have waited for 5 min"),
    ],
)
def test_what_keeps_turns_from_going_on_is_said_with_what_to_do(
    fleet: Fleet, facts: dict[str, Any], words: str
) -> None:
    [alert] = said(fleet, **facts)
    assert alert.message.startswith(words)
    assert alert.fix


def test_what_follows_from_a_store_that_refuses_writes_is_not_said() -> None:
    refusal = Refusal("MISCONF", "the store refuses writes", "make room")
    nobody = Fleet(agents=0, judges=0, slots=0, free=0, stalled=())
    assert [alert.check for alert in said(nobody, refusal=refusal, overdue=3, stuck=(LONG,))] == ["store"]
