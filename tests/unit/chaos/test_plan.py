"""A seed is a plan: who asks what when, and what breaks when."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from api_client.contract.phases.phase import read_phases
from tests.chaos.checker.recovery import HARMLESS
from tests.chaos.options import FAULTY
from tests.chaos.traffic import plan
from tests.chaos.traffic.escalations import ESCALATING, escalating_rules
from tests.chaos.traffic.phase_repertoire import FILE, PHASES, phase, phase_rules
from tests.chaos.traffic.repertoire import KINDS, message, script
from worker.runners.scripted.script import load, steps_for
from worker.verification.verifier.prompt import verifier_prompt


def test_the_same_seed_makes_the_same_plan_and_another_seed_another() -> None:
    assert plan.sessions(7, 200, 60.0) == plan.sessions(7, 200, 60.0)
    assert plan.faults(7, 120.0, 6.0) == plan.faults(7, 120.0, 6.0)
    assert plan.sessions(7, 200, 60.0) != plan.sessions(8, 200, 60.0)
    assert plan.faults(7, 120.0, 6.0) != plan.faults(8, 120.0, 6.0)


@pytest.mark.parametrize("turns", [1, 17, 200, 1000])
def test_as_many_turns_are_planned_as_asked_for_each_with_a_key_of_its_own(turns: int) -> None:
    planned = [turn for session in plan.sessions(1, turns, 60.0) for turn in session.turns]
    assert len(planned) == len({turn.key for turn in planned}) == turns
    assert len({turn.kind for turn in planned}) >= min(turns - turns // plan.PHASES_EVERY, 16)
    chats = turns - turns // plan.PHASES_EVERY - turns // plan.ESCALATING_EVERY
    assert [turn.kind for turn in planned].count("poison") == chats // 300


def test_one_submission_in_eight_is_a_phase_and_every_kind_of_it_is_there() -> None:
    planned = [session for session in plan.sessions(3, 200, 60.0) if session.phases]
    phases = [turn for session in planned for turn in session.turns]
    assert len(phases) == 200 // plan.PHASES_EVERY
    assert {turn.kind for turn in phases} == set(PHASES)
    assert {session.hasty for session in planned} == {True, False}


def test_a_few_messages_are_never_answered_well_and_short_runs_have_what_every_run_must_meet() -> None:
    def kinds(turns: int) -> list[str]:
        planned = [turn for session in plan.sessions(3, turns, 60.0) for turn in session.turns]
        return sorted(turn.kind for turn in planned if turn.kind in ESCALATING)

    assert set(kinds(200)) == set(ESCALATING)
    assert kinds(110) == ["chat-approved", "chat-consulted", "chat-edited", "chat-undecided"]


@pytest.mark.parametrize("seed", range(1, 6))
def test_ten_minutes_kill_a_hundred_times(seed: int) -> None:
    kinds = [fault.kind for fault in plan.faults(seed, 600.0 * FAULTY, 6.0)]
    assert sum(kind.startswith("kill") for kind in kinds) >= 100


def test_over_some_seeds_every_fault_is_drawn() -> None:
    drawn = {fault.kind for seed in range(1, 6) for fault in plan.faults(seed, 600.0, 6.0)}
    assert drawn == {*plan.STORMS, *plan.ANY_TIME}


def test_in_each_round_one_worker_is_killed_alone() -> None:
    """With a lease and a restart of calm before it, and calm after it for as long as recovery may take."""
    faults = [fault for fault in plan.faults(1, 600.0, 6.0) if fault.kind not in HARMLESS]
    alone = [
        fault
        for before, fault, after in zip(faults, faults[1:], faults[2:], strict=False)
        if fault.at - before.at > 9.0 and after.at - fault.at > 10.0
    ]
    assert len(alone) >= 600 // 40
    assert {fault.kind for fault in alone} <= {"kill engine", "kill worker"}
    assert all(first.at <= second.at for first, second in pairwise(faults))


@pytest.mark.parametrize("kind", [*KINDS, *ESCALATING])
def test_the_agents_script_has_an_answer_for_every_kind(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "script.yaml"
    path.write_text(script([*phase_rules(), *escalating_rules()]), encoding="utf-8")
    assert steps_for(load(path), message("k1-0-0", kind), 1, 1)[0][0] != "write"


@pytest.mark.parametrize("kind", PHASES)
def test_a_phase_is_valid_and_its_agents_and_its_verifier_play_different_things(kind: str, tmp_path: Path) -> None:
    [made] = read_phases([phase(0, kind, message("p1-0-0", kind))])
    path = tmp_path / "script.yaml"
    path.write_text(script([*phase_rules(), *escalating_rules()]), encoding="utf-8")
    rules = load(path)
    assert [name for name, _ in steps_for(rules, made.description, 1, 1)] == ["write", "say"]
    asked = verifier_prompt(made, "0" * 32, files={FILE: "{}"})
    if made.verify_agent:
        assert "write" not in [name for name, _ in steps_for(rules, asked, 1, 1)]
