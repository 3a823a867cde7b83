"""Phases with everything real, and workers killed during a phase's run and its verification."""

import asyncio
import json
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from api_client.client import TurnsClient
from api_client.contract.events import Event
from api_client.contract.phase import Phase
from api_client.contract.turn import Turn, TurnRequest
from tests.constants import Constants
from tests.installation import Installation
from tests.support import put, wait_for, wait_until

PHASES = """
- id: build
  description: Baue add.py.
  output_files: [add.py]
  quality_gate: [{type: command, command: [test, "!", -e, %s]}]
- id: document
  description: Beschreibe add.py.
  input_files: [phases/build/output/add.py]
  output_files: [README.md]
"""


@pytest.fixture
def installed(installation: Installation, tmp_path: Path) -> Installation:
    """Provide settings whose agent fails at first, and a project with two phases."""
    write = {"write": {"path": "output/add.py", "content": "def add(a, b:"}}
    good = {"write": {"path": "output/add.py", "content": "def add(a, b): return a + b\n"}}
    readme = {"write": {"path": "output/README.md", "content": "# add\n"}}
    hold = {"wait_for": str(tmp_path / "go")}
    rules = [
        {"when": "Baue", "attempts": [[write, {"say": "Fertig."}], [hold, good, {"say": "Jetzt."}]]},
        {"attempts": [[readme, {"say": "Beschrieben."}]]},
    ]
    work = installation.settings.root / "work"
    work.mkdir()
    (work / "phases.yaml").write_text(PHASES % (tmp_path / "never"))
    points = tmp_path / "points"
    points.mkdir()
    # Without a sandbox: the gates' commands look at files of this test's own.
    installation.play(json.dumps(rules), locale="en", failpoint=str(points), lease_seconds=1.5, sandbox="off")
    return installation


def cli(installed: Installation, *arguments: str) -> Any:
    done = installed.run(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def read(installed: Installation, turn_id: str) -> tuple[Turn, list[Event]]:
    async def ask() -> tuple[Turn, list[Event]]:
        async with TurnsClient(installed.settings) as client:
            turn = await client.reader.read_turn(turn_id)
            events = [event async for event in client.reader.follow_turn(turn_id) if event] if turn.outcome else []
            return turn, events

    return asyncio.run(ask())


def test_phases_go_on_after_a_worker_is_killed_in_run_and_in_verification(
    installed: Installation, tmp_path: Path
) -> None:
    worker = installed.worker()
    build, document = (
        each["turn_id"] for each in cli(installed, "phase", "run", str(installed.settings.root / "work"))
    )
    wait_for(lambda: read(installed, build)[0].attempt == 2 and read(installed, build)[0].state == "running")
    worker.kill(signal.SIGKILL)
    put(tmp_path / "points" / "validation.started", "kill@1")  # once, when it has verified and told nobody
    (tmp_path / "go").touch()
    installed.worker()
    wait_for(lambda: read(installed, document)[0].outcome)
    first, events = read(installed, build)
    assert (first.outcome, first.attempt) == ("passed_after_retry", 2)
    lost = [event.data["during"] for event in events if event.kind == "attempt.lost"]
    assert "running" in lost
    assert "validating" in lost
    kinds = [event.kind for event in events]
    assert (kinds.count("attempt.accepted"), kinds.count("attempt.rejected")) == (1, 1)
    assert read(installed, document)[0].outcome == "passed"
    assert (installed.settings.root / "work/phases/build/output/add.py").read_text() == "def add(a, b): return a + b\n"


def test_the_copies_of_a_worker_that_was_killed_while_it_verified_are_swept_by_the_next_one(
    installed: Installation,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    copies = tmp_path / "copies"
    copies.mkdir()
    monkeypatch.setenv("TMPDIR", str(copies))
    line = f"touch {tmp_path / 'verifying'}; sleep 60"
    (installed.settings.root / "work" / "phases.yaml").write_text(
        "- id: document\n  description: Beschreibe.\n  output_files: [README.md]\n"
        f"  quality_gate: {{type: command, shell: true, command: '{line}'}}\n"
    )
    worker = installed.worker()
    [document] = cli(installed, "phase", "run", str(installed.settings.root / "work"))
    wait_for(lambda: (tmp_path / "verifying").exists())
    worker.kill(signal.SIGKILL)
    [left] = copies.glob("helix-verify-*")
    assert (left / "files" / "README.md").exists()
    cli(installed, "turn", "cancel", document["turn_id"])  # so that no further verification sweeps it
    installed.worker()
    wait_for(lambda: not left.exists())


async def test_suspended_phases_hold_no_slot_so_a_worker_with_one_goes_on(
    installed: Installation, constants: Constants
) -> None:
    phase = Phase(id="build", description="Baue add.py.", output_files=("add.py",), max_attempts=1)
    constants("worker.processes.own_programs", CHECK_SLOTS=1)
    installed.worker(run_slots=1)
    client = installed.client
    suspended = []
    for name in ("work", "other"):
        (installed.settings.root / name).mkdir(exist_ok=True)
        suspended += await client.phases.submit_phases([phase], directory=name)
    await wait_until(lambda: _all_suspended(client, suspended))
    asked = TurnRequest(model="scripted", messages=({"role": "user", "content": "Hallo"},), session_id="s")
    chat = await client.reader.await_result(
        await client.submitter.submit(replace(asked, validators=("file_existence",))), timeout=60
    )
    assert chat.outcome == "passed"
    assert await _all_suspended(client, suspended)
    for turn_id in suspended:
        await client.canceller.cancel(turn_id)


async def _all_suspended(client: TurnsClient, turn_ids: list[str]) -> bool:
    return all([(await client.reader.read_turn(turn_id)).state == "suspended" for turn_id in turn_ids])


def test_a_suspended_phase_outlives_its_workers_and_goes_on_from_the_command_line(
    installed: Installation, tmp_path: Path
) -> None:
    (installed.settings.root / "work" / "phases.yaml").write_text(
        "- {id: build, description: Baue add.py., output_files: [add.py], max_attempts: 1}\n"
    )
    worker = installed.worker()
    [build] = cli(installed, "phase", "run", str(installed.settings.root / "work"))
    wait_for(lambda: read(installed, build["turn_id"])[0].state == "suspended")
    assert [turn["turn_id"] for turn in cli(installed, "inbox", "list")] == [build["turn_id"]]
    worker.kill(signal.SIGKILL)
    shown = cli(installed, "inbox", "show", build["turn_id"])
    assert shown["proposal"]["issues"][0]["code"] == "PYTHON_SYNTAX"
    (installed.settings.root / shown["proposal"]["files"] / "add.py").write_text("add = sum\n")
    cli(installed, "inbox", "edit", build["turn_id"], "--note", "fixed")
    installed.worker()
    wait_for(lambda: read(installed, build["turn_id"])[0].outcome)
    assert read(installed, build["turn_id"])[0].outcome == "passed_by_human"
    assert (installed.settings.root / "work/phases/build/output/add.py").read_text() == "add = sum\n"
    [listed] = cli(installed, "phase", "list", str(installed.settings.root / "work"))
    assert (listed["id"], listed["state"]) == ("build", "passed_by_human")
