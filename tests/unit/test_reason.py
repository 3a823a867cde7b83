"""Why a turn does not run: one function over the facts of a moment."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from api_client.contract.tasks import CHECK_QUEUE, RUN_QUEUE
from api_client.contract.turn import TurnState
from api_client.contract.values.worker_reports import WorkerReport, worker_of
from api_client.contract.words.store_refusals import StoreRefusal
from api_client.pauses.pause import BREAKER, Pause
from api_client.workers.reason import (
    STILL_SECONDS,
    STUCK_SECONDS,
    Facts,
    Reason,
    Row,
    Wait,
    grouped,
    heads,
    waiting,
    why,
)

NOW = 1_000_000.0
ID, OTHER = "t0-" + "1" * 32, "t0-" + "2" * 32
WELL = WorkerReport(
    name="worker-7-1@h", host="h", queues=(RUN_QUEUE, CHECK_QUEUE), slots=4, free=3, check_free=1, at=NOW - 1
)


def turn(**more: Any) -> Row:
    """A turn that was just submitted."""
    fields: dict[str, Any] = {
        "turn_id": ID, "due": (NOW + 4) * 1000, "state": TurnState.QUEUED, "created_at": int((NOW - 1) * 1000),
        "session_id": "s", "held": False, "task": "turn.run", "not_before": 0, "announced": 1, "announced_at": 0,
        "parked_at": 0, "since": 0, "held_since": 0, "worker": "", "runs": "opus",
    }  # fmt: skip
    return Row(**fields | more)


def facts(*reports: WorkerReport, pauses: tuple[Pause, ...] = (), **more: Any) -> Facts:
    return Facts(at=NOW, reports=reports, pauses={0: {each.field: each for each in pauses}}, **more)


def reason(row: Row, known: Facts, head: str = "") -> str:
    found = why(row, head, known)
    return found.reason.value if found else ""


SICK = replace(WELL, name="worker-8-1@i", host="i", sick="no room", free=0)
FULL = replace(WELL, name="worker-9-1@j", free=0)
OTHERS = replace(WELL, name="worker-6-1@k", models=("haiku",))
AWAY = Pause(what=BREAKER, name="opus", reason="HTTP 500", until=NOW + 60)


@pytest.mark.parametrize(
    ("row", "known", "expected"),
    [
        (turn(), facts(WELL), "next"),
        (turn(), facts(), "no_worker"),
        (turn(), facts(replace(WELL, at=NOW - 60)), "no_worker"),
        (turn(), facts(replace(WELL, queues=(CHECK_QUEUE,))), "no_worker"),
        (turn(), facts(SICK), "sick"),
        (turn(), facts(SICK, WELL), "next"),
        (turn(), facts(OTHERS), "unfit"),
        (turn(), facts(OTHERS, WELL), "next"),
        (turn(), facts(OTHERS, FULL), "slot"),
        (turn(runs="haiku"), facts(OTHERS), "next"),
        (turn(), facts(replace(WELL, cannot={"opus": "its script is gone"})), "unfit"),
        (turn(lacks='{"worker-7@h": "no folder"}'), facts(WELL, replace(WELL, name="worker-7-2@h")), "unfit"),
        (turn(lacks='{"worker-7@h": "no folder"}'), facts(WELL, FULL), "slot"),
        (turn(lacks="not JSON"), facts(WELL), "next"),
        (turn(), facts(replace(WELL, quiet=True)), "quiet"),
        (turn(), facts(replace(WELL, stalled=True)), "stalled"),
        (turn(), facts(FULL), "slot"),
        (turn(state=TurnState.RAN, task="turn.validate"), facts(FULL), "next"),
        (turn(), facts(WELL, pauses=(Pause(what="model", name="opus"),)), "pause"),
        (turn(), facts(WELL, pauses=(Pause(what="model", name="haiku"),)), "next"),
        (turn(owner="o"), facts(WELL, pauses=(Pause(what="owner", name="o"),)), "pause"),
        (turn(key="k"), facts(WELL, pauses=(Pause(what="key", name="k"),)), "pause"),
        (turn(), facts(WELL, pauses=(Pause(what="queue", name="run"),)), "pause"),
        (turn(), facts(WELL, pauses=(Pause(what="queue", name="check"),)), "next"),
        (turn(state=TurnState.RAN), facts(WELL, pauses=(Pause(what="queue", name="check"),)), "pause"),
        (turn(stop="cancelled"), facts(WELL, pauses=(Pause(what="queue", name="run"),)), "next"),
        (turn(), facts(WELL, pauses=(AWAY,)), "breaker"),
        (turn(), facts(WELL, pauses=(replace(AWAY, until=NOW - 1),)), "next"),
        (turn(), facts(WELL, pauses=(replace(AWAY, until=NOW - 1, probing=True),)), "breaker"),
        (turn(probes="opus"), facts(WELL, pauses=(replace(AWAY, until=NOW - 1, probing=True),)), "next"),
        (turn(not_before=int((NOW + 30) * 1000)), facts(WELL), "delay"),
        (turn(not_before=int((NOW + 30) * 1000), held_back="model|opus 0 over"), facts(WELL), "next"),
        (turn(), facts(WELL, refusal=StoreRefusal("MISCONF", "its disk is full", "make room")), "store"),
        (turn(state=TurnState.PARKED), facts(WELL), "person"),
        (turn(held=True, worker="worker-7-1@h", state=TurnState.RUNNING), facts(WELL), ""),
        (turn(held=True, worker="worker-7-1@h"), facts(replace(WELL, at=NOW - 60)), "lost"),
        (turn(held=True, worker="alone-9@h", lease_until=int((NOW + 9) * 1000)), facts(WELL), ""),
        (turn(held=True, worker="alone-9@h", lease_until=int((NOW - 1) * 1000)), facts(WELL), "lost"),
        (turn(held=True, worker="gone"), facts(WELL, ended=frozenset({"gone"})), "lost"),
    ],
)  # fmt: skip
def test_each_fact_keeps_a_turn_from_running_in_its_own_way(row: Row, known: Facts, expected: str) -> None:
    assert reason(row, known) == expected


def test_behind_another_turn_of_its_session_it_waits_for_that_one_whatever_else_is_wrong() -> None:
    found = why(turn(), OTHER, facts(pauses=(AWAY,)))
    assert found == Wait(reason=Reason.SESSION, at=NOW, before=OTHER)
    assert found.words() == f"behind another turn of its session: {OTHER}"


@pytest.mark.parametrize(
    ("waited", "took", "expected"),
    [
        (STUCK_SECONDS + 1, STILL_SECONDS + 1, "stuck"),
        (STUCK_SECONDS - 1, STILL_SECONDS + 1, "next"),
        (STUCK_SECONDS + 1, STILL_SECONDS - 1, "next"),  # its turn will come: others are taken
    ],
)
def test_it_is_stuck_when_a_slot_is_free_and_nobody_takes_anything(waited: float, took: float, expected: str) -> None:
    row = turn(created_at=int((NOW - waited) * 1000), announced=0, announced_at=int((NOW - waited) * 1000))
    assert reason(row, facts(replace(WELL, took_at=NOW - took))) == expected


def test_the_head_of_a_session_is_the_turn_that_has_begun_else_the_one_that_came_first() -> None:
    first, second = turn(), turn(turn_id=OTHER, created_at=int(NOW * 1000))
    assert heads([second, first]) == {"s": ID}
    for begun in ({"held": True}, {"state": TurnState.PARKED}, {"state": TurnState.RAN}, {"held_since": 9}):
        assert heads([first, replace(second, **begun)]) == {"s": OTHER}


def test_turns_that_wait_for_the_same_are_told_together_the_worst_first() -> None:
    rows = [turn(session_id="a"), turn(session_id="b", turn_id=OTHER), turn(session_id="c", runs="haiku")]
    known = facts(WELL, pauses=(AWAY,))
    told = grouped(waiting(rows, known))
    assert [(each.wait.reason, each.count) for each in told] == [(Reason.BREAKER, 2), (Reason.NEXT, 1)]


def test_a_reason_is_said_in_both_languages_with_the_next_try_and_to_users_without_what_operators_read() -> None:
    wait = Wait(reason=Reason.BREAKER, at=NOW, subject="opus", said="HTTP 500", until=NOW + 42)
    assert wait.words() == "the circuit breaker of model opus is open; one turn tries again in 42 s: HTTP 500"
    assert wait.words("de", public=True) == "der Dienst des Modells opus ist gestört; neuer Versuch in 42 s"
    assert " at 1" in replace(wait, until=NOW + 3600).words() or " at " in replace(wait, until=NOW + 3600).words()
    assert "HTTP" not in str(wait.to_dict(public=True))
    for each in Reason:
        assert Wait(reason=each).words("de") != Wait(reason=each).words("en")
        assert Wait(reason=each).severity in {"ok", "warning", "wrong"}


def test_processes_of_one_worker_are_told_by_their_names() -> None:
    assert worker_of("worker-12-1@host") == worker_of("worker-12-2@host") == "worker-12@host"
    assert worker_of("w") == "w"
