"""The checker lets a good history pass and finds what is wrong with each of the bad ones, made by hand."""

import json
from pathlib import Path
from typing import Any

import pytest

from api_client.contract.counters import BEYOND, BOUNDS_MS, COUNTERS
from tests.chaos.checker import INVARIANTS, judge
from tests.chaos.checker.counters import _BOUNDS, folded
from tests.chaos.history import ACTION_LOG, HISTORY, Recorder, read
from tests.unit.chaos.histories import (
    PHASE,
    SECOND,
    History,
    Spoil,
    meet_everything,
)
from tests.unit.chaos.spoilers import BAD, insert, lose_verification


def test_a_good_history_passes_with_every_verdict_true() -> None:
    history = History()
    meet_everything(history)
    judgement = judge(history.made())
    assert judgement.problems == []
    assert set(judgement.verdicts.values()) == {"true"}
    assert judgement.good


def test_a_turn_that_was_cancelled_before_a_worker_claimed_it_has_no_attempt_in_its_record() -> None:
    history = History()
    turn = history.turns[SECOND]
    before = {name: turn.record.pop(name) for name in ("attempt", "delivery")}
    ended = turn.log[-1]["data"]
    assert "outcome" in ended
    ended |= {"attempts": 0, "deliveries": 0}
    assert "fold_differs" not in {problem.figure for problem in judge(history.made()).problems}
    ended["attempts"] = int(before["attempt"])
    assert "fold_differs" in {problem.figure for problem in judge(history.made()).problems}


def test_a_worker_may_die_between_sealing_what_it_verified_and_committing_it() -> None:
    history = History()
    lose_verification(history, PHASE, "attempt.accepted")
    assert [problem for problem in judge(history.made()).problems if problem.invariant == 17] == []


def test_a_look_that_began_before_a_turn_was_suspended_accuses_no_agent_of_it() -> None:
    history = History()
    BAD[18, "suspended_at_work"]["the agent of a suspended turn runs"](history)
    seen = next(line for line in history.lines if line["f"] == "alive" and line["t"] == int(8.5e9))
    seen["looked"] = seen["wall"]
    assert [problem.figure for problem in judge(history.made()).problems] == ["suspended_at_work"]
    seen["looked"] = seen["wall"] - 8.0
    assert judge(history.made()).problems == []


def test_a_look_that_began_before_the_next_agent_started_accuses_no_two_of_running_at_once() -> None:
    history = History()
    BAD[7, "agents_overlap"]["two agents of one turn at once"](history)
    seen = next(line for line in history.lines if line["f"] == "alive" and line["t"] == int(14e9))
    assert [problem.figure for problem in judge(history.made()).problems] == ["agents_overlap"]
    seen["looked"] = seen["wall"] - 13.0
    assert judge(history.made()).problems == []


def test_a_verdict_that_was_lost_need_not_be_what_is_judged_when_the_verifier_is_killed_in_the_repeat() -> None:
    history = History()
    lose_verification(history, PHASE, "attempt.rejected")
    told = {"attempt": 1, "success": True, "ground": "verdict", "errors": []}
    insert(history, PHASE, "attempt.lost", "verifier.judged", **told)
    gate = {"attempt": 1, "gate": "syntax", "passed": True, "skipped": False, "issues": []}
    killed = {"attempt": 1, "success": False, "ground": "no verdict", "errors": ["killed"]}
    insert(history, PHASE, "attempt.rejected", "gate.checked", **gate)
    insert(history, PHASE, "attempt.rejected", "verifier.judged", **killed)
    assert [problem for problem in judge(history.made()).problems if problem.invariant == 17] == []


def test_a_run_in_which_too_little_happened_is_not_good_though_nothing_is_wrong() -> None:
    judgement = judge(History().made())
    assert judgement.problems == []
    assert judgement.too_little == [
        "turn announced again by a reaper: never met",
        "answer repaired by the fallback: never met",
    ]
    assert not judgement.good


@pytest.mark.parametrize(
    ("invariant", "figure", "spoil"),
    [pytest.param(*seen, spoil, id=what) for seen, spoiled in BAD.items() for what, spoil in spoiled.items()],
)
def test_a_bad_history_is_noticed_by_the_right_invariant(invariant: int, figure: str, spoil: Spoil) -> None:
    history = History()
    spoil(history)
    judgement = judge(history.made())
    assert (invariant, figure) in {(problem.invariant, problem.figure) for problem in judgement.problems}
    assert judgement.verdicts[invariant] == "false"
    assert judgement.figures[figure] > 0
    assert not judgement.good


def test_every_invariant_has_a_bad_history() -> None:
    assert {invariant for invariant, _ in BAD} == set(INVARIANTS)


@pytest.mark.parametrize(
    "missing",
    [
        "server",
        "execution",
        "files",
        "processes",
        "chat",
        "event",
        "fault",
        "phase_files",
        "alive",
        "decide",
        "restored",
    ],
)
def test_without_its_evidence_an_invariant_is_unknown_never_true(missing: str) -> None:
    lines = [line for line in History().made() if line["f"] != missing]
    concerned = {number for number, (_, needs) in INVARIANTS.items() if missing in needs}
    verdicts = judge(lines).verdicts
    assert concerned
    assert all(verdicts[number] != "true" for number in concerned)


def test_recovery_is_measured_from_the_kill_to_the_next_claim() -> None:
    recovery = judge(History().made()).recovery
    assert recovery["alone"]["n"] == 1
    assert recovery["alone"]["max"] == pytest.approx(11.2 - 4.9)
    assert recovery["overlapping, since the last fault"] == {"n": 0}


def _with_the_broker_away(until: float) -> History:
    """The good history with an outage while its second turn waits for another worker."""
    history = History()
    history.add(6.0, "fault", "invoke", name="fault-1", kind="kill broker", seconds=0, pids=[9])
    history.add(until, "fault", name="fault-1", kind="kill broker", seconds=0)
    return history


def test_where_faults_overlap_recovery_is_measured_from_the_last_and_from_the_first() -> None:
    recovery = judge(_with_the_broker_away(until=7.0).made()).recovery
    assert recovery["alone"] == {"n": 0}
    assert recovery["overlapping, since the last fault"]["max"] == pytest.approx(11.2 - 7.0)
    assert recovery["overlapping, since the first fault"]["max"] == pytest.approx(11.2 - 4.9)


def _slow(history: History, later: int) -> bool:
    for event in history.turns[SECOND].log[4:]:
        event["at"] += later * 1000
    return judge(history.made()).figures.get("slow_recoveries", 0) > 0


def test_the_bound_of_overlapping_faults_begins_at_the_end_of_the_last_one() -> None:
    assert not _slow(_with_the_broker_away(until=14.0), later=15), "26.2 - 14.0 < lease + reap + announce + 5"
    assert _slow(_with_the_broker_away(until=7.0), later=15), "26.2 - 7.0 is longer"


def test_what_a_hand_over_waits_by_design_and_what_the_machine_stood_still_are_no_recovery() -> None:
    history = _with_the_broker_away(until=7.0)
    history.add(20.0, "late", seconds=4.0)
    assert not _slow(history, later=15), "19.2 s, 4 of them stood still"
    handed_over = _with_the_broker_away(until=7.0)
    lost = next(event for event in handed_over.turns[SECOND].log if event["kind"] == "attempt.lost")
    lost["data"]["during"] = "fenced"
    assert not _slow(handed_over, later=15), "handed over at 11.0 with a delay of 1 s"


def test_a_fault_that_found_nothing_to_hit_is_not_counted() -> None:
    history = History()
    history.add(6.0, "fault", "invoke", name="fault-1", kind="kill agent", seconds=0, pids=[9])
    history.add(6.0, "fault", "fail", name="fault-1", kind="kill agent", seconds=0)
    assert judge(history.made()).kills == {"kill engine": 1}


# The checker's own sums: it can tell every counter of the table from a log, and nothing else.

USED = {"input_tokens": 10, "output_tokens": 1, "cost_usd": 0.5}
ISSUES = [{"code": "BAD", "validator": "rule", "severity": "error"}, {"code": "POOR", "severity": "warning"}]
LOG: list[tuple[str, dict[str, Any]]] = [
    ("turn.queued", {}),
    ("attempt.started", {"attempt": 1, "delivery": 1}),
    ("attempt.lost", {"attempt": 1, "during": "running", "silent_ms": 5}),
    ("attempt.started", {"attempt": 1, "delivery": 2}),
    ("attempt.lost", {"attempt": 1, "during": "shutdown", "usage": USED}),
    ("attempt.started", {"attempt": 1, "delivery": 3}),
    ("attempt.completed", {"attempt": 1, "verdict": "complete", "usage": USED}),
    ("attempt.rejected", {"attempt": 1, "issues": ISSUES}),
    ("turn.escalated", {"attempt": 1, "stage": 2}),
    ("turn.suspended", {"attempt": 1}),
    ("turn.decided", {"attempt": 1, "kind": "reject"}),
    ("turn.finished", {"outcome": "failed", "step": "", "error": {"issues": ISSUES}}),
]


def told(**request: Any) -> dict[str, int]:
    record = {"model": "m", "flow": "v2", "policy": "1a", "request": json.dumps({"validators": ["rule"], **request})}
    return dict(folded(record, [{"at": 1000 * n, "kind": kind, "data": data} for n, (kind, data) in enumerate(LOG)]))


def test_every_counter_of_the_table_is_told_from_the_log_with_its_labels() -> None:
    found = {**told(), **told(work="phase")}
    names: dict[str, int] = {}
    for field in found:
        name, *labels = field.split("|")
        bucket = name.endswith(".le")
        names[name.removesuffix(".le").removesuffix(".ms")] = len(labels) - bucket
    # Rules in shadow leave no event: the log is the same with and without them. Breakers belong to models. Only agents
    # that may be kept say how they started. Tool calls have a log of their own.
    assert names == {
        name: len(counted.labels)
        for name, counted in COUNTERS.items()
        if not name.startswith(("shadow.", "breaker.", "time.start", "tool.", "time.tool", "cost.tools"))
    }
    assert _BOUNDS == BOUNDS_MS
    assert f"time.turn.le|{BEYOND}" not in found


def test_runs_that_were_given_back_are_paid_for_and_wasted() -> None:
    found = told()
    assert (found["tokens.input|m"], found["tokens.failed|m"]) == (20, 22)
    assert (found["cost.all|m"], found["cost.failed|m"]) == (1_000_000, 1_000_000)
    assert found["code.rejected|BAD|escalate"] == found["code.gave_up|BAD"] == 1


# A history is what was written, in the order of time, however its writers ended.


def test_lines_are_read_back_in_the_order_of_time_with_the_agents_own(tmp_path: Path) -> None:
    with Recorder(tmp_path) as recorder:
        recorder.write("submit", "invoke", key="k1")
        recorder.write("submit", "ok", key="k1", turn="turn-1")
    first = read(tmp_path)[0]
    executed = {"turn": "turn-1", "attempt": 1, "delivery": 1, "event": "start", "at": 1.0}
    (tmp_path / ACTION_LOG).write_text(json.dumps({**executed, "monotonic": first["t"] / 1e9 - 1}) + "\n")
    lines = read(tmp_path)
    assert [(line["f"], line["type"]) for line in lines] == [
        ("execution", "start"),
        ("submit", "invoke"),
        ("submit", "ok"),
    ]
    assert first.keys() >= {"t", "wall", "pid"}


def test_a_last_line_cut_off_by_its_writers_death_is_left_out(tmp_path: Path) -> None:
    with Recorder(tmp_path) as recorder:
        recorder.write("run")
    with (tmp_path / HISTORY).open("a") as file:
        file.write('{"t": 1, "f": "sub')
    assert [line["f"] for line in read(tmp_path)] == ["run"]


def test_a_broken_line_in_the_middle_is_no_history(tmp_path: Path) -> None:
    with Recorder(tmp_path) as recorder:
        recorder.write("run")
        (tmp_path / HISTORY).open("a").write("nonsense\n")
        recorder.write("phase")
    with pytest.raises(ValueError, match="line 2"):
        read(tmp_path)
