"""What is told to be stuck, and what is not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from api_client.contract.tasks import CHECK_QUEUE, RUN_QUEUE
from api_client.workers.alerts import STUCK_SECONDS, Fleet, alerts, fleet_of

NOW = 1_000_000.0
WELL = Fleet(agents=1, judges=1, slots=4, free=2, deaf=())


def worker(**more: Any) -> dict[str, Any]:
    return {"name": "run-1", "queues": [RUN_QUEUE], "slots": 4, "free": 3, "deaf": False, "at": NOW - 1, **more}


def test_a_crew_counts_who_was_heard_of_just_now() -> None:
    told = [worker(), worker(at=NOW - 60), worker(name="both", queues=[RUN_QUEUE, CHECK_QUEUE], check_free=2)]
    assert fleet_of(told, NOW) == Fleet(agents=2, judges=1, slots=8, free=6, deaf=())


def test_slots_of_a_worker_that_takes_no_messages_are_not_free() -> None:
    assert fleet_of([worker(deaf=True)], NOW) == Fleet(agents=1, judges=0, slots=4, free=0, deaf=("run-1",))


def test_nothing_is_stuck_while_workers_take_turns() -> None:
    assert not [*alerts(WELL, overdue=0, waited_seconds=STUCK_SECONDS + 1, working=3)]
    assert not [*alerts(WELL, overdue=0, waited_seconds=STUCK_SECONDS - 1, working=0)]


@pytest.mark.parametrize(
    ("fleet", "facts", "said"),
    [
        (Fleet(agents=0, judges=1, slots=0, free=0, deaf=()), {}, "no worker is there to run agents"),
        (Fleet(agents=1, judges=0, slots=4, free=4, deaf=()), {}, "no worker is there to judge"),
        (Fleet(agents=1, judges=1, slots=4, free=0, deaf=("run-1",)), {}, "takes no messages: run-1"),
        (replace(WELL, sick={"b": "/data cannot be written"}), {}, "b carries out no turns: /data cannot be written"),
        (WELL, {"overdue": 3}, "3 turns were due"),
        (WELL, {"waited_seconds": STUCK_SECONDS + 1}, "turns have waited for 5 min"),
    ],
)
def test_what_keeps_turns_from_going_on_is_told_with_what_to_do(fleet: Fleet, facts: dict[str, Any], said: str) -> None:
    [alert] = alerts(fleet, **{"overdue": 0, "waited_seconds": 0.0, "working": 0, **facts})
    assert alert.message.startswith(said)
    assert alert.fix
