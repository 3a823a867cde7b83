"""What is said to be stuck, and what is not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from api_client.budgets.budget import Spent
from api_client.contract.tasks import CHECK_QUEUE, RUN_QUEUE
from api_client.contract.values.worker_reports import WorkerReport
from api_client.contract.words.store_refusals import StoreRefusal
from api_client.pauses.pause import Pause
from api_client.workers.fleet import Alert, Fleet, alerts, fleet_of
from api_client.workers.reason import STUCK_SECONDS, Facts, Reason, Wait, Waiting

NOW = 1_000_000.0
WELL = Fleet(agents=1, judges=1, slots=4, free=2, stalled=(), ready={RUN_QUEUE: 0.0, CHECK_QUEUE: 0.0})


def long(reason: Reason, **more: Any) -> Waiting:
    wait = Wait(reason=reason, at=NOW, **more)
    return Waiting(wait=wait, turn_id="t0-1", queue=RUN_QUEUE, since=NOW - STUCK_SECONDS - 1)


LONG = long(Reason.STUCK)
BREAKER = Pause(what="breaker", name="opus", reason="HTTP 500", until=NOW + 60)
SPENT = Spent(scope="all", budget="all", limit_usd=1, spent_usd=2, resets_at=NOW + 3600)


def worker(**more: Any) -> WorkerReport:
    report = WorkerReport(name="run-1", queues=(RUN_QUEUE,), slots=4, free=3, at=NOW - 1)
    return replace(report, **more)


def said(fleet: Fleet, **facts: Any) -> list[Alert]:
    known = {name: facts.pop(name) for name in ("refusal", "pauses", "budgets") if name in facts}
    return [*alerts(fleet, Facts(at=NOW, **known), **{"overdue": 0, "waits": (), **facts})]


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


@pytest.mark.parametrize(
    ("fleet", "facts", "words"),
    [
        (Fleet(agents=0, judges=1, slots=0, free=0, stalled=()), {}, "no worker is there to run agents"),
        (Fleet(agents=1, judges=0, slots=4, free=4, stalled=()), {}, "no worker is there to judge"),
        (Fleet(agents=1, judges=1, slots=4, free=0, stalled=("run-1",)), {}, "takes no messages: run-1"),
        (replace(WELL, sick={"b": "/data cannot be written"}), {}, "b carries out no turns: /data cannot be written"),
        (replace(WELL, quiet=("run-1",)), {}, "every worker that runs agents was ordered to take nothing new"),
        (WELL, {"overdue": 3}, "3 turns were due"),
        (WELL, {"waits": (LONG,)}, "1 turns could run and have waited for 5 min"),
        (WELL, {"folders": {"a", "b"}}, "the workers on a, b see different session folders"),
        (WELL, {"pauses": {0: {"breaker|opus": BREAKER}}}, "the circuit breaker of model opus is open"),
        (
            WELL,
            {"waits": (long(Reason.UNFIT, subject="model opus"),)},
            "1 turn waits, the longest for 301 s: no worker",
        ),
        (WELL, {"waits": (long(Reason.PAUSE, subject="model opus"),)}, "1 turn waits, the longest for 301 s: paused"),
        (WELL, {"waits": (long(Reason.SLOT),)}, "1 turn waits, the longest for 301 s: every slot is at work"),
        (WELL, {"budgets": [SPENT]}, "a day's budget is spent: all; new turns"),
    ],
)
def test_what_keeps_turns_from_going_on_is_said_with_what_to_do(
    fleet: Fleet, facts: dict[str, Any], words: str
) -> None:
    [alert] = said(fleet, **facts)
    assert alert.message.startswith(words)
    assert alert.fix


def test_what_follows_from_a_store_that_refuses_writes_is_not_said() -> None:
    refusal = StoreRefusal("MISCONF", "the store refuses writes", "make room")
    nobody = Fleet(agents=0, judges=0, slots=0, free=0, stalled=())
    assert [alert.check for alert in said(nobody, refusal=refusal, overdue=3, waits=(LONG,))] == ["store"]


def test_what_waits_behind_a_breaker_is_said_with_it_and_what_waits_as_it_should_is_no_alert() -> None:
    behind = long(Reason.BREAKER, subject="opus", said="HTTP 500", until=NOW + 60)
    [alert] = said(WELL, waits=(behind,), pauses={0: {"breaker|opus": BREAKER}})
    assert alert.message.startswith("1 turn waits, the longest for 301 s: the circuit breaker of model opus is open")
    assert (alert.check, alert.severity) == ("breaker", "wrong")
    assert not said(WELL, waits=(long(Reason.SESSION), long(Reason.DELAY), long(Reason.PERSON), long(Reason.NEXT)))
