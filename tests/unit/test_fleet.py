"""What is said to be stuck, and what is not."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from api_client.budgets import budget_monitor
from api_client.budgets.budget import BudgetSpending
from api_client.contract.settings import Settings
from api_client.contract.store_refusals import StoreRefusal
from api_client.contract.tasks import CHECK_QUEUE, RUN_QUEUE
from api_client.contract.turn import TurnState
from api_client.contract.worker_reports import WorkerReport, worker_name
from api_client.pauses.pause import BREAKER, Pause
from api_client.pauses.pause_waits import PauseObstacle, find_pause_waits
from api_client.workers.fleet import (
    Alert,
    Fleet,
    HeldTurn,
    KeptAgent,
    OwnerRow,
    find_alerts,
    list_owners,
    list_workers,
    make_fleet,
)
from api_client.workers.installation_state import InstallationState
from api_client.workers.reason import (
    FIELDS,
    FOR_A_WORKER,
    REASONS,
    STILL_SECONDS,
    STUCK_SECONDS,
    InstallationFacts,
    Reason,
    UnfinishedTurn,
    Wait,
    WaitingGroup,
    explain_wait,
    find_first_turns,
    group_by_reason,
    list_waiting,
    read_row,
)
from worker.processes import own_programs
from worker.processes.cpus import usable_cpus

NOW = 1_000_000.0
WELL_FLEET = Fleet(agents=1, validators=1, slots=4, free=2, stalled=(), ready={RUN_QUEUE: 0.0, CHECK_QUEUE: 0.0})


def long(reason: Reason, **more: Any) -> WaitingGroup:
    wait = Wait(reason=reason, at=NOW, **more)
    return WaitingGroup(wait=wait, turn_id="turn-1", queue=RUN_QUEUE, since=NOW - STUCK_SECONDS - 1)


LONG = long(Reason.STUCK)
BROKEN = Pause(what="breaker", name="opus", reason="HTTP 500", until=NOW + 60)
SPENT = BudgetSpending(scope="all", budget="all", limit_usd=1, spent_usd=2, resets_at=NOW + 3600)


def worker(**more: Any) -> WorkerReport:
    report = WorkerReport(name="run-1", queues=(RUN_QUEUE,), slots=4, free=3, at=NOW - 1)
    return replace(report, **more)


def said(fleet: Fleet, **facts: Any) -> list[Alert]:
    known = {name: facts.pop(name) for name in ("refusal", "troubles") if name in facts}
    return [*find_alerts(fleet, InstallationFacts(at=NOW, **known), **{"overdue": 0, "waits": (), **facts})]


def test_a_fleet_counts_who_was_heard_of_just_now() -> None:
    both = worker(name="both", queues=[RUN_QUEUE, CHECK_QUEUE], check_free=2, took_at=3.0)
    reports = [worker(took_at=5.0), worker(at=NOW - 60), both]
    ready = {RUN_QUEUE: 5.0, CHECK_QUEUE: 3.0}
    assert make_fleet(reports, NOW) == Fleet(agents=2, validators=1, slots=8, free=6, stalled=(), ready=ready)


def test_a_worker_whose_agents_are_all_at_work_may_still_judge() -> None:
    reports = [worker(queues=[RUN_QUEUE, CHECK_QUEUE], free=0, check_free=1)]
    assert set(make_fleet(reports, NOW).ready) == {CHECK_QUEUE}


def test_slots_of_a_worker_that_takes_no_messages_are_not_free() -> None:
    assert make_fleet([worker(stalled=True)], NOW) == Fleet(agents=1, validators=0, slots=4, free=0, stalled=("run-1",))


@pytest.mark.parametrize(
    ("fleet", "facts", "words"),
    [
        (Fleet(agents=0, validators=1, slots=0, free=0, stalled=()), {}, "no worker for agents is running"),
        (Fleet(agents=1, validators=0, slots=4, free=4, stalled=()), {}, "no worker for validation is running"),
        (Fleet(agents=1, validators=1, slots=4, free=0, stalled=("run-1",)), {}, "takes no messages: run-1"),
        (
            replace(WELL_FLEET, sick={"b": "/data cannot be written"}),
            {},
            "b carries out no turns: /data cannot be written",
        ),
        (replace(WELL_FLEET, quiet=("run-1",)), {}, "every worker that runs agents was told to take no new turns"),
        (WELL_FLEET, {"overdue": 3}, "3 turns were due"),
        (WELL_FLEET, {"waits": (LONG,)}, "1 turns could run and have waited for 5 min"),
        (WELL_FLEET, {"folders": {"a", "b"}}, "the workers on a, b see different session folders"),
        (WELL_FLEET, {"troubles": find_pause_waits([BROKEN], NOW)}, "the circuit breaker of model opus is open"),
        (
            WELL_FLEET,
            {"waits": (long(Reason.UNFIT, subject="model opus"),)},
            "1 turn waits, the longest for 301 s: no worker",
        ),
        (
            WELL_FLEET,
            {"waits": (long(Reason("pause"), subject="model opus"),)},
            "1 turn waits, the longest for 301 s: paused",
        ),
        (WELL_FLEET, {"waits": (long(Reason.SLOT),)}, "1 turn waits, the longest for 301 s: all slots are busy"),
        (
            WELL_FLEET,
            {"troubles": budget_monitor.find_budget_waits([SPENT], NOW)},
            "a day's budget is spent: all; new turns",
        ),
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
    nobody = Fleet(agents=0, validators=0, slots=0, free=0, stalled=())
    assert [alert.check for alert in said(nobody, refusal=refusal, overdue=3, waits=(LONG,))] == ["store"]


def test_what_waits_behind_a_breaker_is_said_with_it_and_what_waits_as_it_should_is_no_alert() -> None:
    behind = long(Reason("breaker"), subject="opus", said="HTTP 500", until=NOW + 60)
    [alert] = said(WELL_FLEET, waits=(behind,), troubles=find_pause_waits([BROKEN], NOW))
    assert alert.message.startswith("1 turn waits, the longest for 301 s: the circuit breaker of model opus is open")
    assert (alert.check, alert.severity) == ("breaker", "wrong")
    assert not said(
        WELL_FLEET, waits=(long(Reason.SESSION), long(Reason.DELAY), long(Reason.PERSON), long(Reason.NEXT))
    )


def test_owners_of_most_turns_come_first_with_the_share_of_their_newest_turn() -> None:
    rows = [
        turn(owner="few", key="few"),
        turn(owner="many", created_at=1, weight=2),
        turn(owner="many", created_at=2, weight=3, most=4, held=True, state=TurnState.RUNNING),
        turn(owner="many", created_at=1, state=TurnState.SUSPENDED),
    ]
    few, many = (line for line in sorted(list_owners(rows), key=lambda line: line.waiting + line.working))
    assert many == OwnerRow(name="many", weight=3, at_once=4, working=1, waiting=1), (
        "a suspended turn waits for a person"
    )
    assert few == OwnerRow(name="few/few", weight=1, at_once=0, working=0, waiting=1)
    assert [line.name for line in list_owners(rows)] == ["many", "few/few"]


# Why a turn does not run: one function over the facts of a moment.

ID, OTHER = "turn-" + "1" * 32, "turn-" + "2" * 32
WELL = WorkerReport(
    name="worker-7-1@h", host="h", queues=(RUN_QUEUE, CHECK_QUEUE), slots=4, free=3, check_free=1, at=NOW - 1
)


def turn(**more: Any) -> UnfinishedTurn:
    fields: dict[str, Any] = {
        "turn_id": ID, "due": (NOW + 4) * 1000, "state": TurnState.QUEUED, "created_at": int((NOW - 1) * 1000),
        "session_id": "s", "held": False, "task": "turn.run", "not_before": 0, "announced": 1, "announced_at": 0,
        "suspended_at": 0, "since": 0, "held_since": 0, "worker": "", "runs": "opus",
    }  # fmt: skip
    return UnfinishedTurn(**fields | more)


def facts(*reports: WorkerReport, pauses: tuple[Pause, ...] = (), **more: Any) -> InstallationFacts:
    known = {"obstacles": [PauseObstacle(pauses)], "troubles": find_pause_waits(pauses, NOW)}
    return InstallationFacts(at=NOW, reports=reports, **known, **more)


def reason(row: UnfinishedTurn, known: InstallationFacts, head: str = "") -> str:
    found = explain_wait(row, head, known)
    return found.reason.value if found else ""


@pytest.mark.parametrize(("seconds", "when"), [(5, "takes over in 5 s"), (0, "takes over"), (-60, "takes over")])
def test_the_time_of_a_takeover_is_told_only_while_it_is_to_come(seconds: int, when: str) -> None:
    held = turn(held=True, worker="worker-9-1@gone", lease_until=(NOW + seconds) * 1000)
    found = explain_wait(held, "", facts(ended=frozenset({"worker-9-1@gone"})))
    assert found
    assert found.words().endswith(when)


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
        (turn(state=TurnState.SUSPENDED), facts(WELL), "person"),
        (turn(held=True, worker="worker-7-1@h", state=TurnState.RUNNING), facts(WELL), ""),
        (turn(held=True, worker="worker-7-1@h"), facts(replace(WELL, at=NOW - 60)), "lost"),
        (turn(held=True, worker="alone-9@h", lease_until=int((NOW + 9) * 1000)), facts(WELL), ""),
        (turn(held=True, worker="alone-9@h", lease_until=int((NOW - 1) * 1000)), facts(WELL), "lost"),
        (turn(held=True, worker="gone"), facts(WELL, ended=frozenset({"gone"})), "lost"),
    ],
)  # fmt: skip
def test_each_fact_keeps_a_turn_from_running_in_its_own_way(
    row: UnfinishedTurn, known: InstallationFacts, expected: str
) -> None:
    assert reason(row, known) == expected


def test_an_owner_at_its_limit_keeps_its_next_turn_back_and_not_one_that_has_a_place() -> None:
    waits, known = turn(owner="a", most=2), facts(WELL, at_work=frozenset({"a|x", "a|y", "b|z"}))
    assert reason(waits, known) == "owner"
    assert reason(waits, facts(WELL, at_work=frozenset({"a|x", "b|y"}))) != "owner"
    assert reason(waits, facts(WELL, at_work=frozenset({"a|x", f"a|{ID}"}))) != "owner"
    assert reason(replace(waits, most=0), known) != "owner"


def test_what_to_scale_by_counts_turns_at_work_and_turns_that_could_start() -> None:
    one = WaitingGroup(wait=Wait(reason=Reason.SLOT), turn_id=ID, queue=RUN_QUEUE, since=0.0)
    standing = InstallationState(
        at=NOW, fleet=Fleet(slots=4), states={"running": 4, "suspended": 9}, waiting=(one, one)
    )
    assert standing.slots_needed == 1.5
    assert replace(standing, fleet=Fleet()).slots_needed == 6, "without a worker the turns are counted"


def test_behind_another_turn_of_its_session_it_waits_for_that_one_whatever_else_is_wrong() -> None:
    found = explain_wait(turn(), OTHER, facts(pauses=(AWAY,)))
    assert found == Wait(reason=Reason.SESSION, at=NOW, before=OTHER)
    assert found.words() == f"waits for an earlier turn of its session: {OTHER}"


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
    assert find_first_turns([second, first]) == {"s": ID}
    for begun in ({"held": True}, {"state": TurnState.SUSPENDED}, {"state": TurnState.RAN}, {"held_since": 9}):
        assert find_first_turns([first, replace(second, **begun)]) == {"s": OTHER}


def test_turns_that_wait_for_the_same_are_told_together_the_worst_first() -> None:
    rows = [turn(session_id="a"), turn(session_id="b", turn_id=OTHER), turn(session_id="c", runs="haiku")]
    known = facts(WELL, pauses=(AWAY,))
    told = group_by_reason(list_waiting(rows, known))
    assert [(each.wait.reason, each.count) for each in told] == [(Reason("breaker"), 2), (Reason.NEXT, 1)]


def test_a_reason_is_said_in_both_languages_with_the_next_try_and_to_users_without_what_operators_read() -> None:
    wait = Wait(reason=Reason("breaker"), at=NOW, subject="opus", said="HTTP 500", until=NOW + 42)
    assert wait.words() == "the circuit breaker of model opus is open; next try in 42 s: HTTP 500"
    assert wait.words("de", public=True) == "der Dienst des Modells opus ist gestört; neuer Versuch in 42 s"
    assert " at 1" in replace(wait, until=NOW + 3600).words() or " at " in replace(wait, until=NOW + 3600).words()
    assert "HTTP" not in str(wait.to_dict(public=True))
    for each in REASONS:
        assert Wait(reason=each).words("de") != Wait(reason=each).words("en")
        assert Wait(reason=each).severity in {"ok", "warning", "wrong"}


def test_processes_of_one_worker_are_told_by_their_names() -> None:
    assert worker_name("worker-12-1@host") == worker_name("worker-12-2@host") == "worker-12@host"
    assert worker_name("w") == "w"


# A worker's line: what it does, and whether it is gone.

LOOKED_AT = 1000.0


def report(**more: Any) -> WorkerReport:
    report = WorkerReport(name="run-1@h", host="h", pid=7, queues=("helix.run",), slots=4, free=3)
    return replace(report, **{"at": LOOKED_AT - 1, "started_at": 1.0, **more})


def held(worker: str) -> UnfinishedTurn:
    return UnfinishedTurn(
        turn_id="turn-1", due=0, state=TurnState.RUNNING, created_at=0, session_id="s", held=True, task="turn.run",
        not_before=0, announced=1, announced_at=0, suspended_at=0, since=900_000, held_since=0, worker=worker,
    )  # fmt: skip


def test_a_worker_shows_the_turns_it_holds() -> None:
    [line] = list_workers([report()], [held("run-1@h"), held("other")], LOOKED_AT)
    assert (line.state, line.doing) == ("at work", (HeldTurn("turn-1", "turn.run", 900.0),))


def test_a_living_worker_shows_the_agents_it_keeps_and_a_silent_one_none() -> None:
    kept = {"young": [900.0, 5], "old": [800.0, 7], "of another version": 1}
    lines = list_workers([report(kept=kept), report(name="z@i", at=LOOKED_AT - 60, kept=kept)], [], LOOKED_AT)
    assert {line.name: line.kept for line in lines} == {
        "run-1@h": (KeptAgent("old", 800.0, 7), KeptAgent("young", 900.0, 5)),
        "z@i": (),
    }


@pytest.mark.parametrize(
    ("more", "state"),
    [({}, "idle"), ({"stalled": True}, "stalled"), ({"sick": "disk"}, "sick"), ({"quiet": True}, "quiet")],
)
def test_a_living_worker_says_how_it_is(more: dict[str, Any], state: str) -> None:
    [line] = list_workers([report(**more)], [], LOOKED_AT)
    assert (line.state, line.silent_seconds) == (state, 0)


def test_a_silent_worker_is_gone_unless_another_took_its_place_then_nobody_misses_it() -> None:
    silent = report(name="run-0@h", at=LOOKED_AT - 600)
    [line] = list_workers([silent], [], LOOKED_AT)
    assert (line.state, line.silent_seconds) == ("gone", 600)
    lines = list_workers([silent, report(started_at=500.0)], [], LOOKED_AT)
    assert [(each.name, each.state) for each in lines] == [("run-1@h", "idle"), ("run-0@h", "replaced")]


def test_who_is_gone_comes_first() -> None:
    lines = list_workers([report(), report(name="z@i", host="i", at=LOOKED_AT - 60)], [], LOOKED_AT)
    assert [each.name for each in lines] == ["z@i", "run-1@h"]


# Which turns could run now, and since when.

SINCE, DELAY = 10_000.0, 5.0  # seconds


def stored(turn_id: str = "turn-1", *, due: float = 0.0, **more: object) -> UnfinishedTurn:
    """A record as the store has it; times in ms."""
    fields: dict[str, object] = {"state": "queued", "session_id": "s", "next": "turn.run/1", "created_at": 1, **more}
    found = read_row(turn_id, due, [str(fields[name]).encode() if name in fields else None for name in FIELDS])
    assert found is not None
    return found


def ready(*rows: UnfinishedTurn) -> list[tuple[str, str, float]]:
    found = list_waiting(rows, InstallationFacts(at=SINCE, announce_seconds=DELAY))
    return [(each.turn_id, each.queue, each.since) for each in found if each.wait.reason in FOR_A_WORKER]


def test_a_turn_that_nobody_took_waits_since_it_was_submitted() -> None:
    assert ready(stored(created_at=4_000_000, due=4_005_000)) == [("turn-1", RUN_QUEUE, 4_000.0)]


def test_a_turn_in_the_line_waits_since_it_was_submitted_though_it_is_looked_at_much_later() -> None:
    assert ready(stored(created_at=9_000_000, due=10_300_000)) == [("turn-1", RUN_QUEUE, 9_000.0)]


def test_a_turn_that_is_to_be_judged_waits_for_another_queue() -> None:
    assert ready(stored(state="ran", next="turn.validate/1", due=9_005_000)) == [("turn-1", CHECK_QUEUE, 9_000.0)]


@pytest.mark.parametrize("first", [{"state": "suspended"}, {"state": "running", "token": "x"}, {"token": "x"}])
def test_what_lies_behind_a_held_suspended_or_paused_turn_of_its_session_does_not_wait_for_a_worker(
    first: dict[str, Any],
) -> None:
    behind = stored("turn-2", created_at=2)
    assert ready(stored(**first), behind) == ready(behind, stored(**first)) == []


def test_of_each_session_the_head_alone_waits() -> None:
    second, first, other = (
        stored("turn-2", created_at=2),
        stored("turn-1"),
        stored("turn-3", session_id="t", due=9_000_000),
    )
    assert [turn_id for turn_id, *_ in ready(second, first, other)] == ["turn-1", "turn-3"]


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
    assert ready(stored(announced=0, announced_at=7_000_000, due=99_000_000)) == [("turn-1", RUN_QUEUE, 7_000.0)]


@pytest.mark.parametrize("fields", [{}, {"state": b"finished"}, {"state": b"queued", "created_at": b"x"}])
def test_a_turn_that_is_gone_ended_or_damaged_is_left_out(fields: dict[str, bytes]) -> None:
    assert read_row("turn-1", 0.0, [fields.get(name) for name in FIELDS]) is None


# How many processes a worker has, and which share of its slots each gets.


@pytest.mark.parametrize(
    ("processes", "runs", "checks", "shares"),
    [
        (1, 16, 2, [(16, 2)]),
        (2, 16, 2, [(8, 1), (8, 1)]),
        (3, 16, 2, [(6, 1), (5, 1), (5, 1)]),
        (4, 2, 5, [(1, 3), (1, 2)]),
        (8, 1, 2, [(1, 2)]),
    ],
)
def test_the_slots_of_a_worker_are_shared_out_and_no_process_is_without_one(
    processes: int, runs: int, checks: int, shares: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_programs, "CHECK_SLOTS", checks)
    found = own_programs.share_slots(Settings(run_slots=runs), processes)
    assert [(share.run_slots, share.check_slots) for share in found] == shares


def test_untold_there_is_a_process_for_each_cpu_that_may_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_programs, "usable_cpus", lambda: 3)
    assert len(own_programs.share_slots(Settings())) == 3


def test_the_quota_of_a_control_group_counts_rounded_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(8)))
    quota = tmp_path / "cpu.max"
    assert usable_cpus(quota) == 8
    for text, most in {"max 100000": 8, "400000 100000": 4, "150000 100000": 2, "50000 100000": 1, "": 8}.items():
        quota.write_text(text)
        assert usable_cpus(quota) == most, text


def test_commands_load_no_package_that_a_library_would_only_use_where_it_is_installed() -> None:
    look = (
        "import sys, worker.cli\n"
        "found = worker.cli.cli\n"
        "for word in sys.argv[1:]:\n"
        "    found = found.get_command(None, word)\n"
        "left = sorted(n for n in sys.modules if n.partition('.')[0] in ('rich', 'opentelemetry'))\n"
        "import rich\n"
        "print(found.name, left)\n"
    )
    for command in ("run worker", "up"):
        done = subprocess.run(
            [sys.executable, "-P", "-c", look, *command.split()],
            capture_output=True,
            text=True,
            check=True,
            env=os.environ,
        )
        assert done.stdout == f"{command.split()[-1]} []\n", "rich can still be imported, and nothing did"
