"""Gates run what an agent wrote in a sandbox, or for operators alone (CVE-2026-47101 of LiteLLM)."""

import os
import socket
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from api_client import api_keys as ring
from api_client.client import TurnsClient
from api_client.contract.phase import Phase
from api_client.contract.settings import Settings
from api_client.contract.turn import Outcome
from api_client.web.app.relay_server import create_app
from tests.integration.test_phases import BUILD, PhaseBench, writes
from tests.unit.web.conftest import caller
from worker.runners.sandbox import bubblewrap
from worker.verification import GateReport, GateSandbox, run_gates

#: What an agent may write as a test: it tries its ways out when it is collected, and passes when it found none.
TRIES = """
import os, pathlib, socket

found = []

def tried(name, way):
    try:
        way()
        found.append(name)
    except OSError:
        pass

def speak():
    with socket.socket(socket.AF_UNIX) as client:
        client.connect({broker!r})

tried("read", lambda: pathlib.Path({secret!r}).read_text())
pathlib.Path({outside!r}).write_text("x")
tried("output", lambda: pathlib.Path({output!r}, "test_it.py").write_text("x"))
tried("environ", lambda: pathlib.Path("/proc/{worker}/environ").read_bytes())
tried("broker", speak)
pathlib.Path("mine").write_text("its own copy is writable")

def test_ok():
    assert not found
"""


@pytest.fixture
def output(tmp_path: Path) -> Path:
    folder = tmp_path / "phase" / "output"
    folder.mkdir(parents=True)
    return folder


def checked(output: Path, tmp_path: Path, fence: GateSandbox, gate: Any = "tests_pass") -> GateReport:
    phase = Phase.from_dict({"id": "p", "description": "d", "quality_gate": gate})
    return run_gates(phase, output, locale="en", scratch=tmp_path / "scratch", fence=fence)


def tries(output: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("SECRET")
    at = {"secret": tmp_path / "secret", "outside": tmp_path / "outside", "output": output, "broker": tmp_path / "sock"}
    content = TRIES.format(worker=os.getpid(), **{name: str(path) for name, path in at.items()})
    (output / "test_it.py").write_text(content)


def test_the_tests_of_a_user_reach_nothing_outside_their_box(output: Path, tmp_path: Path) -> None:
    if problem := bubblewrap.find_obstacle():
        pytest.skip(problem)
    tries(output, tmp_path)
    with socket.socket(socket.AF_UNIX) as broker:
        broker.bind(str(tmp_path / "sock"))
        broker.listen()
        sandboxed = checked(output, tmp_path, GateSandbox(mode="required", operator=False))
        assert not (tmp_path / "outside").exists(), "what it wrote in its /tmp went with the sandbox"
        unsandboxed = checked(output, tmp_path, GateSandbox(mode="off"))
    assert sandboxed.passed, sandboxed.issues
    assert "'read', 'output', 'environ', 'broker'" in unsandboxed.issues[0].message, "the tries can succeed"


@pytest.mark.parametrize("gate", ["tests_pass", {"type": "command", "command": ["touch", "/tmp/never"]}])
@pytest.mark.parametrize("mode", ["auto", "off"])
def test_without_a_box_the_programs_of_a_user_are_not_started(
    output: Path, tmp_path: Path, gate: Any, mode: str
) -> None:
    tries(output, tmp_path)
    report = checked(output, tmp_path, GateSandbox(mode=mode, operator=False, obstacle="bubblewrap is missing"), gate)
    [issue] = report.issues
    assert (report.passed, issue.code) == (False, "CANNOT_RUN")
    assert "let an operator submit the phase" in issue.message
    assert not (tmp_path / "outside").exists()


def test_where_a_box_is_required_and_missing_no_gate_starts_anything_for_anybody(output: Path, tmp_path: Path) -> None:
    tries(output, tmp_path)
    report = checked(output, tmp_path, GateSandbox(mode="required", operator=True, obstacle="bubblewrap is missing"))
    assert {issue.code for issue in report.issues} == {"GATE_ERROR"}
    assert "HELIX_SANDBOX=required, but bubblewrap is missing" in report.issues[0].message
    assert not (tmp_path / "outside").exists()


def test_a_box_that_cannot_be_made_is_told_and_is_not_the_phases_fault(
    output: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "bin" / "bwrap"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    (output / "a.txt").write_text("x")  # not parsed
    report = checked(output, tmp_path, GateSandbox(obstacle=""), {"type": "command", "command": ["true"]})
    assert (report.issues[0].code, "No permissions" in report.issues[0].message) == ("CANNOT_RUN", True)


@pytest.fixture
async def bench(settings: Settings) -> AsyncIterator[PhaseBench]:
    settings = replace(settings, models={"scripted": "scripted"}, locale="en", sandbox="off")
    async with TurnsClient(settings) as client:
        made = PhaseBench(settings, client)
        yield made
        made.leases.close()


async def test_a_users_phase_ends_before_its_agent_is_paid_for_where_its_gates_may_not_run(bench: PhaseBench) -> None:
    turn = await bench.phase(quality_gate="tests_pass")
    assert (turn.outcome, turn.error.code, turn.attempt) == (Outcome.ERROR, "config", 1)
    assert bench.runner.orders == []
    [attempt] = await bench.client.reader.read_attempts(turn.turn_id)
    assert "gate tests_pass runs what an agent wrote" in attempt.completion["reason"]


async def test_an_operators_phase_runs_its_gates_there(bench: PhaseBench) -> None:
    command = {"type": "command", "command": ["test", "-f", "add.py"]}
    turn = await bench.phase(writes("x = 1\n"), operator=True, quality_gate=command)
    assert turn.outcome == Outcome.PASSED


async def test_who_submits_decides_what_gates_may_do_and_commands_are_for_operators(
    settings: Settings, tmp_path: Path
) -> None:
    file = tmp_path / "keys.json"
    secret = {
        right: ring.add_key(file, ring.ApiKey(name=right, hash="", owner=right, right=right)) for right in ring.RIGHTS
    }
    command = {"type": "command", "command": ["true"]}
    app = create_app(replace(settings, keys_file=str(file), phase_directories=("work=*",)))
    (settings.root / "work").mkdir()
    async with app.router.lifespan_context(app), TurnsClient(settings) as client:
        for right, gate, status in [
            ("user", command, 403),
            ("user", {"type": "tests_pass", "command": ["true"]}, 403),
            ("user", "tests_pass", 202),
            ("operator", "tests_pass", 202),
            ("operator", command, 202),
        ]:
            async with caller(app, authorization=f"Bearer {secret[right]}") as http:
                body = {"directory": "work", "phases": [{**BUILD, "quality_gate": gate}]}
                answer = await http.post("/v1/phases", json=body)
            assert answer.status_code == status, (right, gate)
            if status == 403:
                assert answer.json()["error"]["code"] == "operators_only"
            else:
                turn = await client.reader.read_turn(answer.json()["data"][0]["turn_id"])
                assert turn.request.operator == (right == "operator")


async def test_without_keys_nobody_submits_a_command_over_http(settings: Settings) -> None:
    app = create_app(settings)
    body = {"directory": "work", "phases": [{**BUILD, "quality_gate": {"type": "command", "command": ["true"]}}]}
    async with app.router.lifespan_context(app), caller(app) as http:
        answer = await http.post("/v1/phases", json=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "operators_only")
