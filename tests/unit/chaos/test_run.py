"""A seed is a plan: who asks what when, and what breaks when."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from api_client.contract.phase import read_phases
from tests.chaos.checker.recovery import HARMLESS
from tests.chaos.command import BREAKABLE, main
from tests.chaos.history import HISTORY
from tests.chaos.options import FAULTY
from tests.chaos.run import Interrupted, workplace
from tests.chaos.traffic import plan
from tests.chaos.traffic.escalations import ESCALATING, escalating_rules
from tests.chaos.traffic.phase_repertoire import FILE, PHASES, phase, phase_rules
from tests.chaos.traffic.repertoire import KINDS, message, script
from tests.support import wait_until
from tests.unit.chaos.histories import History, meet_everything
from worker.runners.scripted.script import find_steps, load_script
from worker.verification.verifier_prompt import build_verifier_prompt


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
    assert find_steps(load_script(path), message("k1-0-0", kind), 1, 1)[0][0] != "write"


@pytest.mark.parametrize("kind", PHASES)
def test_a_phase_is_valid_and_its_agents_and_its_verifier_play_different_things(kind: str, tmp_path: Path) -> None:
    [made] = read_phases([phase(0, kind, message("p1-0-0", kind))])
    path = tmp_path / "script.yaml"
    path.write_text(script([*phase_rules(), *escalating_rules()]), encoding="utf-8")
    rules = load_script(path)
    assert [name for name, _ in find_steps(rules, made.description, 1, 1)] == ["write", "say"]
    asked = build_verifier_prompt(made, "0" * 32, files={FILE: "{}"})
    if made.verify_agent:
        assert "write" not in [name for name, _ in find_steps(rules, asked, 1, 1)]


# The switches that prove the checker still fit the engine: what each takes out is still there to be taken out.

ROOT = Path(__file__).parents[3]
_LOOK = """
from api_client.client import TurnsClient
from api_client.contract.settings import Settings
from worker.turns.leases.lease import Lease
from tests.on_loop import Ledger
from worker.turns.leases.reaper import Reaper
settings = Settings(store_url="redis://127.0.0.1:1", broker_url="redis://127.0.0.1:1")
TurnsClient(settings)
Ledger(settings, "nobody")
print(Reaper.reap_turns.__name__, type(Lease.lease_ends).__name__)
"""


@pytest.mark.parametrize("guard", BREAKABLE)
def test_a_guard_can_be_switched_off(guard: str) -> None:
    paths = f"{ROOT / 'tests' / 'fault' / 'sabotage'}{os.pathsep}{ROOT}"
    environ = {**os.environ, "PYTHONPATH": paths, "HELIX_AGENT_BREAK": guard}
    looked = subprocess.run(
        [sys.executable, "-P", "-c", _LOOK], env=environ, capture_output=True, text=True, check=False
    )
    assert looked.returncode == 0, looked.stderr
    assert ("<lambda>" in looked.stdout) == (guard == "reaper")


def test_nothing_of_it_is_in_the_installed_package() -> None:
    shipped = [path for folder in ("api_client", "worker") for path in (ROOT / folder).rglob("*.py")]
    assert not [path for path in shipped if "HELIX_AGENT_BREAK" in path.read_text()]


# A chaos run that is asked to end by a signal ends, wherever the signal finds it.


class _Finalized:
    """Gets the signal while Python finalizes it: what is raised there is lost."""

    def __del__(self) -> None:
        os.kill(os.getpid(), signal.SIGTERM)


def test_a_signal_that_comes_in_a_finalizer_interrupts_the_loop_and_all_is_as_before() -> None:
    before, folders = signal.getsignal(signal.SIGTERM), []

    async def be_busy() -> None:
        _Finalized()
        await wait_until(lambda: None)

    def run() -> None:
        with workplace() as directory:
            folders.append(directory)
            asyncio.run(be_busy())

    with pytest.raises(Interrupted) as interrupted:
        run()
    assert interrupted.value.code == 128 + signal.SIGTERM
    assert not folders[0].exists()
    assert signal.getsignal(signal.SIGTERM) == before


# ``python -m tests.chaos judge``: what a stored history is worth, as an exit code, a table and JSON.


def judged(history: History, folder: Path, *arguments: str) -> int:
    """The exit code of judging a history that is stored in ``folder``."""
    (folder / HISTORY).write_text("".join(json.dumps(line) + "\n" for line in history.made()))
    with pytest.raises(SystemExit) as ended:
        main(["judge", str(folder), *arguments])
    return int(str(ended.value.code))


def test_a_good_history_is_exit_code_0(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    history = History()
    meet_everything(history)
    assert judged(history, tmp_path) == 0
    assert "no violation observed" in capsys.readouterr().out


def test_a_violation_is_exit_code_1_and_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    history = History()
    meet_everything(history)
    del history.turns["turn-3"]
    assert judged(history, tmp_path) == 1
    assert "lost: turn-3" in capsys.readouterr().out


def test_too_little_is_exit_code_3_and_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert judged(History(), tmp_path) == 3
    output = capsys.readouterr().out
    assert "no violation observed" in output
    assert "the run proves too little: answer repaired by the fallback: never met" in output


def test_with_json_a_program_reads_every_figure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    history = History()
    meet_everything(history)
    judged(history, tmp_path, "--json")
    result = json.loads(capsys.readouterr().out)
    assert (result["submitted"], result["acknowledged"], result["finished"], result["lost"]) == (6, 6, 6, 0)
    assert (result["agent_runs"], result["kills"], result["seed"], result["good"]) == (5, {"kill engine": 1}, 1, True)
    assert set(result["verdicts"].values()) == {"true"}


def test_a_folder_without_a_history_is_exit_code_2(tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["judge", str(tmp_path)])
    assert ended.value.code == 2


def test_a_violation_in_a_run_that_proves_too_little_is_exit_code_1(tmp_path: Path) -> None:
    history = History()
    del history.turns["turn-3"]
    assert judged(history, tmp_path) == 1


def test_a_damaged_history_is_exit_code_2_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / HISTORY).write_text("{\nnothing\n")
    with pytest.raises(SystemExit) as ended:
        main(["judge", str(tmp_path)])
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith(f"error: {tmp_path / HISTORY}, line 1: ")


def test_a_run_that_breaks_is_exit_code_2_keeps_its_history_and_says_where(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks(*_: object) -> None:
        raise RuntimeError("a fault of the laboratory")

    monkeypatch.setattr("tests.chaos.command.run", breaks)
    with pytest.raises(SystemExit) as ended:
        main(["--history", str(tmp_path / "kept")])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert f"the run could not be carried out; the history so far is in {tmp_path / 'kept'}" in said
    assert "a fault of the laboratory" in said
