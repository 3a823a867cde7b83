"""The checker lets a good history pass and finds what is wrong with each of the bad ones, made by hand."""

from __future__ import annotations

import pytest

from tests.chaos.checker import INVARIANTS, judge
from tests.unit.chaos.histories import (
    PHASE,
    History,
    Spoil,
    meet_everything,
)
from tests.unit.chaos.phase_spoilers import BAD_PHASES, lose_verification, place_of
from tests.unit.chaos.spoilers import BAD, insert

ALL_BAD = [*BAD, *BAD_PHASES]


def test_a_good_history_passes_with_every_verdict_true() -> None:
    history = History()
    meet_everything(history)
    judgement = judge(history.made())
    assert judgement.problems == []
    assert set(judgement.verdicts.values()) == {"true"}
    assert judgement.good


def test_a_worker_may_die_between_sealing_what_it_verified_and_committing_it() -> None:
    history = History()
    lose_verification(history, PHASE, "attempt.accepted")
    assert [problem for problem in judge(history.made()).problems if problem.invariant == 17] == []


def test_a_verdict_that_was_lost_need_not_be_what_is_judged_when_the_verifier_is_killed_in_the_repeat() -> None:
    history = History()
    lose_verification(history, PHASE, "attempt.rejected")
    told = {"attempt": 1, "success": True, "ground": "verdict", "errors": []}
    insert(history, PHASE, place_of(history, PHASE, "attempt.lost"), "verifier.judged", **told)
    gate = {"attempt": 1, "gate": "syntax", "passed": True, "skipped": False, "issues": []}
    killed = {"attempt": 1, "success": False, "ground": "no verdict", "errors": ["killed"]}
    insert(history, PHASE, place_of(history, PHASE, "attempt.rejected"), "gate.checked", **gate)
    insert(history, PHASE, place_of(history, PHASE, "attempt.rejected"), "verifier.judged", **killed)
    assert [problem for problem in judge(history.made()).problems if problem.invariant == 17] == []


def test_a_run_in_which_too_little_happened_is_not_good_though_nothing_is_wrong() -> None:
    judgement = judge(History().made())
    assert judgement.problems == []
    assert judgement.too_little == [
        "turn announced again by a reaper: never met",
        "answer repaired by the fallback: never met",
    ]
    assert not judgement.good


@pytest.mark.parametrize(("spoil", "invariant", "figure"), ALL_BAD, ids=[spoil.__name__ for spoil, _, _ in ALL_BAD])
def test_a_bad_history_is_noticed_by_the_right_invariant(spoil: Spoil, invariant: int, figure: str) -> None:
    history = History()
    spoil(history)
    judgement = judge(history.made())
    assert (invariant, figure) in {(problem.invariant, problem.figure) for problem in judgement.problems}
    assert judgement.verdicts[invariant] == "false"
    assert judgement.figures[figure] > 0
    assert not judgement.good


def test_every_invariant_has_a_bad_history() -> None:
    assert {invariant for _, invariant, _ in ALL_BAD} == set(INVARIANTS)


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
    assert recovery["n"] == 1
    assert recovery["max"] == pytest.approx(11.2 - 4.9)


def test_faults_that_overlap_tell_nothing_of_recovery() -> None:
    history = History()
    history.add(6.0, "fault", "invoke", name="fault-1", kind="kill broker", seconds=0, pids=[9])
    history.add(7.0, "fault", name="fault-1", kind="kill broker", seconds=0)
    assert judge(history.made()).recovery == {"n": 0}


def test_a_fault_that_found_nothing_to_hit_is_not_counted() -> None:
    history = History()
    history.add(6.0, "fault", "invoke", name="fault-1", kind="kill agent", seconds=0, pids=[9])
    history.add(6.0, "fault", "fail", name="fault-1", kind="kill agent", seconds=0)
    assert judge(history.made()).kills == {"kill engine": 1}
