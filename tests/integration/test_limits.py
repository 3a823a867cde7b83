"""What an agent may use of the machine: above a limit it is ended with the reason, in a sandbox and without one."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from api_client.contract.completion import Completion, ErrorKind, Verdict
from api_client.contract.phase import Phase
from tests.runs import ended, order_in
from tests.support import wait_for
from worker.runners.sandbox import bubblewrap, resource_usage
from worker.runners.sandbox.guard_client import AgentProcesses
from worker.runners.sandbox.launch import OUR_CODE, Launch
from worker.runners.sandbox.resource_usage import ResourceLimits
from worker.runners.sandbox.supervision import RunEnding, explain_own_stop
from worker.verification import GateSandbox, run_gates

ENOUGH = ResourceLimits(memory_mb=4096, processes=500, open_files=1000, tmp_mb=64, folder_mb=64)
STAY = "\nimport time; time.sleep(600)"


Runs = Callable[..., tuple[RunEnding, Completion | None]]


@pytest.fixture(params=["off", "required"], ids=["no sandbox", "sandbox"])
def runs(agents: AgentProcesses, tmp_path: Path, request: pytest.FixtureRequest) -> Runs:
    """Run Python code as an agent under bounds: how it ended, and the verdict over that if it was ended by us."""
    if request.param == "required" and (problem := bubblewrap.find_network_obstacle()):
        pytest.skip(problem)

    def play(code: str, **bounds: int) -> tuple[RunEnding, Completion | None]:
        directory = tmp_path / "run"
        directory.mkdir()
        order = order_in(tmp_path, f"limits-{tmp_path.name}", directory=directory, deadline=time.monotonic() + 600)
        launch = Launch(
            argv=[sys.executable, "-c", code],
            env={"PATH": "/usr/bin:/bin"},
            stdin=b"",
            binds=OUR_CODE,
            sandbox=request.param,
            bounds=ResourceLimits(**{**_values(ENOUGH), **bounds}),
        )
        ending = ended(agents, launch, order)
        return ending, explain_own_stop(ending, order, ending.evidence)

    return play


def _values(bounds: ResourceLimits) -> dict[str, int]:
    return {name: getattr(bounds, name) for name in ResourceLimits.__slots__}


MEMORY = "x = bytearray(b'x') * (300 * 2**20)" + STAY
SPREAD = """
import os, time
for _ in range(5):
    if os.fork() == 0:
        x = bytearray(b"x") * (60 * 2**20)
        time.sleep(600)
time.sleep(600)
"""
PROCESSES = "import subprocess\nfor _ in range(30): subprocess.Popen(['sleep', '600'])" + STAY
THREADS = "import threading, time\nfor _ in range(30): threading.Thread(target=time.sleep, args=(600,)).start()"
FILES = """
import time
held = []
try:
    while True: held.append(open('/dev/null'))
except OSError: pass
time.sleep(600)
"""
FOLDER = "open('big', 'wb').write(b'x' * (6 * 2**20))"


@pytest.mark.parametrize(
    ("code", "bounds", "setting"),
    [
        (MEMORY, {"memory_mb": 150}, "HELIX_LIMIT_MEMORY_MB"),
        (SPREAD, {"memory_mb": 150}, "HELIX_LIMIT_MEMORY_MB"),
        (PROCESSES, {"processes": 20}, "limit_processes"),
        (THREADS, {"processes": 20}, "limit_processes"),
        (FILES, {"open_files": 64}, "limit_open_files"),
        (FOLDER + STAY, {"folder_mb": 5}, "limit_folder_mb"),
        (FOLDER, {"folder_mb": 5}, "limit_folder_mb"),
    ],
    ids=["memory", "memory of several", "processes", "threads", "open files", "folder", "folder, and ends at once"],
)
def test_an_agent_over_a_limit_is_ended_and_the_limit_is_named(
    runs: Runs, code: str, bounds: dict[str, int], setting: str
) -> None:
    started = time.monotonic()
    ending, completion = runs(code, **bounds)
    assert completion, (ending.exit, ending.stderr)
    assert (completion.verdict, completion.kind) == (Verdict.ERROR, ErrorKind.LIMIT)
    assert setting in completion.reason
    assert completion.evidence["stopped"] == "limit"
    assert time.monotonic() - started < 300, "it did not wait for the agent's own end"


@pytest.mark.parametrize("folder", ["/tmp", "/dev/shm"])
def test_the_memory_behind_a_boxs_own_folders_is_bounded_by_the_kernel_and_told(
    runs: Runs, request: pytest.FixtureRequest, folder: str, tmp_path: Path
) -> None:
    if "no sandbox" in request.node.name:
        pytest.skip("without a sandbox /tmp is everybody's")
    code = f"""
import pathlib, time
try: pathlib.Path("{folder}/x").write_bytes(b"x" * (8 * 2**20))
except OSError as error: pathlib.Path("said").write_text(error.strerror)
time.sleep(600)
"""
    _, completion = runs(code, tmp_mb=4)
    assert (tmp_path / "run" / "said").read_text() == "No space left on device"
    assert completion
    assert (completion.kind, "limit_tmp_mb" in completion.reason) == (ErrorKind.LIMIT, True)


def test_shared_memory_counts_once_sparse_files_not_at_all_and_who_keeps_within_limits_ends_by_itself(
    runs: Runs,
) -> None:
    code = """
import os, time
x = bytearray(b"x") * (100 * 2**20)
children = []
for _ in range(4):
    children.append(os.fork())
    if not children[-1]:
        time.sleep(2)
        os._exit(0)
with open("sparse", "wb") as file: file.truncate(2**30)
for child in children: os.waitpid(child, 0)
"""
    ending, completion = runs(code, memory_mb=250, folder_mb=5)
    assert (completion, ending.exit.code) == (None, 0)


def test_a_process_that_has_ended_uses_no_memory_also_before_its_parent_has_waited_for_it() -> None:
    child = subprocess.Popen(["true"])
    wait_for(lambda: Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z")
    assert (
        resource_usage._proportional_memory(resource_usage.ProcessStat(pid=child.pid, threads=1, resident=100 * 2**20))
        == 0
    )
    child.wait()


def test_a_process_that_lives_on_is_weighed_without_the_files_it_runs() -> None:
    process = resource_usage.ProcessStat(pid=os.getpid(), threads=1, resident=2**40)
    if "Pss_File" not in resource_usage._read_smaps(process):
        pytest.skip("this kernel does not tell files apart")
    assert 0 < resource_usage._freeable_memory(process) < resource_usage._proportional_memory(process) < 2**40


def test_a_process_that_lives_on_is_weighed_anew_when_it_has_grown_or_after_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mib, resident, weighed = 2**20, 100, list[int]()
    monkeypatch.setattr(
        resource_usage, "_read_stat", lambda pid: (1, resource_usage.ProcessStat(int(pid), 1, resident * mib))
    )
    monkeypatch.setattr(resource_usage, "_freeable_memory", lambda each: weighed.append(each.pid) or 70 * mib)
    weight = resource_usage.MemoryMeter()
    assert [weight.measure([7]) // mib, len(weighed)] == [70, 1]
    resident = 110
    assert [weight.measure([7]) // mib, len(weighed)] == [80, 1]
    resident = 120
    assert [weight.measure([7]) // mib, len(weighed)] == [70, 2]
    monkeypatch.setattr(resource_usage, "_WEIGHED_SECONDS", 0.0)
    assert [weight.measure([7]) // mib, len(weighed)] == [70, 3]


def test_the_kernel_refuses_twice_the_open_files_at_once(runs: Runs, tmp_path: Path) -> None:
    code = """
held = []
try:
    for _ in range(150): held.append(open("/dev/null"))
except OSError:
    pass
open(0).close()
open("said", "w").write(str(len(held)))
"""
    runs(code, open_files=60)
    assert 100 < int((tmp_path / "run" / "said").read_text()) < 120


def test_too_many_files_are_a_limit_too(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource_usage, "MAX_ENTRIES", 50)
    _, completion = runs("import os\nfor n in range(60): os.mkdir(str(n))")
    assert completion
    assert "more than 50 files" in completion.reason


def test_no_limit_is_no_limit(runs: Runs) -> None:
    ending, completion = runs(FOLDER, memory_mb=0, processes=0, open_files=0, tmp_mb=0, folder_mb=0)
    assert (completion, ending.exit.code) == (None, 0)


@pytest.mark.parametrize("mode", ["off", "required"])
def test_the_programs_of_gates_have_the_same_limits(tmp_path: Path, mode: str) -> None:
    if mode == "required" and (problem := bubblewrap.find_network_obstacle()):
        pytest.skip(problem)
    output = tmp_path / "output"
    output.mkdir()
    (output / "a.txt").write_text("x")
    gate: dict[str, Any] = {"type": "command", "command": [sys.executable, "-c", FOLDER + STAY]}
    phase = Phase.from_dict({"id": "p", "description": "d", "quality_gate": gate})
    fence = GateSandbox(mode=mode, bounds=ResourceLimits(folder_mb=5))
    report = run_gates(phase, output, locale="en", scratch=tmp_path / "scratch", fence=fence)
    [issue] = report.issues
    assert (issue.code, "limit_folder_mb" in issue.message) == ("LIMIT_REACHED", True)
