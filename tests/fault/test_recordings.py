"""An agent's words are recorded while it speaks: its worker may die at any moment, and nothing is lost."""

import errno
import os
import secrets
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support import alive, wait_for
from worker.files import recording
from worker.runners.sandbox.agent_process import AgentProcess
from worker.runners.sandbox.guard_client import SOURCE_ROOT, AgentProcesses

RUN = f"recording-{secrets.token_hex(4)}"
SAYS = "print('Zeile eins'); print('Zeile zwei', end='')"

#: A worker that starts an agent, may read some of what it says, and then does nothing any more.
WORKER = """
import sys, time
from pathlib import Path
from worker.runners.sandbox.guard_client import AgentProcesses
agents = AgentProcesses()
agent = agents.spawn_agent([sys.executable, "-S", "-c", sys.argv[1]], mark=sys.argv[2], env={}, cwd=Path("/"),
                     lease_ends=time.monotonic() + 600, recorded=Path(sys.argv[3]), facts={"box": "none"})
for _ in range(int(sys.argv[4])):
    while not agent.read_output(1):
        pass
if len(sys.argv) > 5:
    Path(sys.argv[5]).touch()
    agent.wait_for_end(600)
print(agents.start_guard(), flush=True)
time.sleep(600)
"""

#: The same with a guard that kills its worker and itself, before it carries out a part of its work.
KILLED_WITH_ITS_GUARD = """
import sys, time
from pathlib import Path
from worker.runners.sandbox import guard_client
guard_client.FAST_PYTHON = [sys.executable, "-S", "-P", "-c", sys.argv[5]]
agents = guard_client.AgentProcesses()
agent = agents.spawn_agent([sys.executable, "-S", "-c", sys.argv[1]], mark=sys.argv[2], env={}, cwd=Path("/"),
                     lease_ends=time.monotonic() + 600, recorded=Path(sys.argv[3]), facts={"box": "none"})
for _ in range(int(sys.argv[4])):
    while not agent.read_output(1):
        pass
Path(sys.argv[6]).touch()
time.sleep(600)
"""
GUARD = """
import os, signal, sys
from worker.runners.sandbox import guard
del sys.argv[1]  # the module's name
carry_out = guard.Guard.{part}

def die(self, *given, **facts):
    if {when}:
        for pid in (os.getppid(), os.getpid()):
            os.kill(pid, signal.SIGKILL)
    return carry_out(self, *given, **facts)

guard.Guard.{part} = die
guard.main()
"""
#: What a guard does when an agent has ended, in this order.
PARTS = {
    "reports the end": ("_queue_report", "facts['event'] == 'ended'"),
    "sends it": ("_send_reports", "any(not agent.is_running for agent in self._agents.values())"),
    "sweeps": ("_sweep_leftovers", "True"),
    "finishes": ("_finish_agent", "True"),
    "reports the exit": ("_queue_report", "facts['event'] == 'exit'"),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "delivery"
    folder.mkdir()
    return folder


@pytest.fixture
def agents() -> Iterator[AgentProcesses]:
    agents = AgentProcesses()
    yield agents
    agents.stop_guard()


@pytest.fixture
def worker(folder: Path) -> Iterator[Callable[..., tuple[subprocess.Popen[str], int]]]:
    started: list[subprocess.Popen[str]] = []

    def run(code: str, *more: str, reads: int = 0) -> tuple[subprocess.Popen[str], int]:
        argv = [sys.executable, "-c", textwrap.dedent(WORKER), code, f"{RUN}.1.1", str(folder), str(reads), *more]
        process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env={"PYTHONPATH": SOURCE_ROOT})
        started.append(process)
        assert process.stdout is not None
        return process, int(process.stdout.readline())

    yield run
    for process in started:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def spawned(agents: AgentProcesses, folder: Path, code: str) -> AgentProcess:
    """Start an agent whose run is recorded in ``folder``."""
    return agents.spawn_agent(
        [sys.executable, "-S", "-c", code],
        mark=f"{RUN}.{secrets.token_hex(4)}.1",
        env={},
        cwd=folder,
        lease_ends=time.monotonic() + 600,
        recorded=folder,
        facts={"box": "none", "cut": False},
    )


def run_of(agents: AgentProcesses, folder: Path, code: str, *, stop: bool = False) -> bytes:
    """Run an agent to its end, as a living worker does, and return its output."""
    agent = spawned(agents, folder, code)
    said = b""
    if stop:
        said += wait_for(lambda: agent.read_output(0.1))
        agent.terminate_agent(60)
    wait_for(lambda: agent.wait_for_end(0))
    while piece := agent.read_output(0.1):
        said += piece
    agent.close()
    return said


def left_of(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.parent.iterdir() if path != folder)


def test_a_run_that_finished_is_recorded_with_its_end(agents: AgentProcesses, folder: Path) -> None:
    assert run_of(agents, folder, SAYS) == b"Zeile eins\nZeile zwei"
    found = wait_for(lambda: recording.read_finished(folder))
    assert found.output == b"Zeile eins\nZeile zwei"
    assert (found.facts["code"], found.facts["box"]) == (0, "none")
    recording.delete_recording(folder)
    assert left_of(folder) == []


@pytest.mark.parametrize("code", ["print('x'); raise SystemExit(3)", "import os; print('x'); os.kill(os.getpid(), 9)"])
def test_a_run_that_failed_leaves_no_recording(agents: AgentProcesses, folder: Path, code: str) -> None:
    run_of(agents, folder, code)
    wait_for(lambda: left_of(folder) == [])


def test_a_run_that_was_stopped_leaves_no_recording_however_well_it_ended(agents: AgentProcesses, folder: Path) -> None:
    ends_well = (
        "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(0)); print('x', flush=True); time.sleep(600)"
    )
    run_of(agents, folder, ends_well, stop=True)
    wait_for(lambda: left_of(folder) == [])


@pytest.mark.parametrize("reads", [0, 1])
def test_what_a_killed_worker_had_not_read_is_recorded_by_its_guard(
    worker: Callable[..., tuple[subprocess.Popen[str], int]], folder: Path, reads: int
) -> None:
    go = folder / "go"
    waits = f"import os, time\nprint(0, flush=True)\nwhile not os.path.exists({str(go)!r}): time.sleep(0.01)\n"
    process, guard = worker(waits + "for n in range(1, 5000): print(n)", str(go), reads=reads)
    said = b"".join(b"%d\n" % number for number in range(5000))
    assert folder.with_name("delivery.output").stat().st_size < len(said)
    process.kill()
    wait_for(lambda: not alive(guard))
    found = recording.read_finished(folder)
    assert found
    assert found.output == said


@pytest.mark.parametrize("reads", [0, 1])
@pytest.mark.parametrize("part", PARTS)
def test_a_finished_run_can_be_adopted_wherever_worker_and_guard_are_killed_together(
    part: str, reads: int, folder: Path
) -> None:
    go = folder / "go"
    says = f"import os, time\nprint(0, flush=True)\nwhile not os.path.exists({str(go)!r}): time.sleep(0.01)\n"
    method, when = PARTS[part]
    guard = GUARD.format(part=method, when=when)
    more = [says + "for n in range(1, 5000): print(n)", f"{RUN}.1.1", str(folder), str(reads), guard, str(go)]
    argv = [sys.executable, "-c", KILLED_WITH_ITS_GUARD, *more]
    killed = subprocess.run(argv, env={"PYTHONPATH": SOURCE_ROOT}, timeout=600, check=False)
    assert killed.returncode == -signal.SIGKILL
    found = recording.read_finished(folder)
    assert found
    assert found.output == b"".join(b"%d\n" % number for number in range(5000))
    assert found.facts["code"] == 0
    recording.delete_recording(folder)
    assert left_of(folder) == []


def test_a_piece_that_the_worker_reads_while_the_end_is_noted_is_there_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, writer = os.pipe()
    os.write(writer, b"Zeile eins\n")
    ours, held = recording.RunRecording(folder), recording._copy_pipe
    moved = list[bytes | None]()

    def in_between(pipe: int) -> bytes:
        found = held(pipe)
        if not moved:
            moved.append(ours.record_piece(pipe))
            os.write(writer, b"Zeile zwei\n")
        return found

    monkeypatch.setattr(recording, "_copy_pipe", in_between)
    recording.GuardRecording(str(folder), os.dup(ours.fd), reader).write_end({"code": 0})
    assert moved == [b"Zeile eins\n"]
    assert recording.read_finished(folder) == recording.FinishedRun(b"Zeile eins\nZeile zwei\n", {"code": 0})


def test_a_recording_that_its_worker_gave_up_is_not_finished(folder: Path) -> None:
    reader, writer = os.pipe()
    os.write(writer, b"what comes after a gap")
    ours = recording.RunRecording(folder)
    kept = recording.GuardRecording(str(folder), os.dup(ours.fd), reader)
    ours.discard()
    with pytest.raises(FileNotFoundError):
        kept.write_end({"code": 0})
    assert left_of(folder) == []


def test_all_that_a_pipe_holds_is_kept_however_large_it_was_made(agents: AgentProcesses, folder: Path) -> None:
    enlarges = "import fcntl; fcntl.fcntl(1, fcntl.F_SETPIPE_SZ, 2**20); print('x' * 10**6)"
    agent = spawned(agents, folder, enlarges)
    wait_for(lambda: agent.wait_for_end(0))
    found = recording.read_finished(folder)
    assert found
    assert found.output == b"x" * 10**6 + b"\n"
    agent.close()


def test_an_agent_that_was_at_work_when_its_worker_died_leaves_no_recording(
    worker: Callable[..., tuple[subprocess.Popen[str], int]], folder: Path
) -> None:
    process, guard = worker("import time; print('x', flush=True); time.sleep(600)", reads=1)
    process.kill()
    wait_for(lambda: not alive(guard))
    assert left_of(folder) == []


def test_an_agent_runs_to_its_end_where_its_output_cannot_be_recorded(
    agents: AgentProcesses, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "splice", full)
    assert run_of(agents, folder, SAYS) == b"Zeile eins\nZeile zwei"
    found = recording.read_finished(folder)
    assert found is None or found.output == b"Zeile eins\nZeile zwei", "it had all ended before the worker read it"


def test_a_run_of_which_a_part_was_not_recorded_leaves_no_recording(
    agents: AgentProcesses, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "splice", full)
    go = folder / "go"
    waits = f"import os, time\nprint(0, flush=True)\nwhile not os.path.exists({str(go)!r}): time.sleep(0.01)\nprint(1)"
    agent = agents.spawn_agent(
        [sys.executable, "-S", "-c", waits],
        mark=f"{RUN}.{secrets.token_hex(4)}.1",
        env={},
        cwd=folder,
        lease_ends=time.monotonic() + 600,
        recorded=folder,
        facts={"box": "none", "cut": False},
    )
    assert wait_for(lambda: agent.read_output(0.1)) == b"0\n"
    assert left_of(folder) == [], "from now on nobody can take what follows for the whole"
    go.touch()
    wait_for(lambda: agent.wait_for_end(0))
    assert left_of(folder) == []
    agent.close()


def test_a_run_is_started_where_its_recording_cannot_be_made(agents: AgentProcesses, folder: Path) -> None:
    folder.with_name("delivery.output").write_text("somebody else's")
    assert run_of(agents, folder, SAYS) == b"Zeile eins\nZeile zwei"
    assert recording.read_finished(folder) is None


@pytest.mark.parametrize("content", ["", "\n", "Zeile\n", "Zeile\n[1]\n", 'Zeile\n{"code": 0'])
def test_a_recording_without_its_last_line_is_none(folder: Path, content: str) -> None:
    folder.with_name("delivery.finished").write_text(content)
    assert recording.read_finished(folder) is None


def test_each_message_of_an_agent_has_its_own_recording_and_the_last_one_is_whole_however_the_agent_ends(
    agents: AgentProcesses, folder: Path
) -> None:
    repeats = "import sys\nfor line in sys.stdin:\n    print(line * 2, end='', flush=True)"
    agent = agents.spawn_agent(
        [sys.executable, "-S", "-c", repeats],
        mark=f"{RUN}.{secrets.token_hex(4)}.1",
        env={},
        cwd=folder,
        stdin=None,
        lease_ends=time.monotonic() + 600,
        facts={"box": "none", "cut": False},
    )
    first, second = folder.parent / "first", folder.parent / "second"
    agent.set_recording(recording.RunRecording(first, b"head\n"))
    assert agent.write_input(b"a\n", 10)
    assert wait_for(lambda: agent.read_output(0.1)) == b"a\na\n"
    agent.set_recording(recording.RunRecording(second, b"head\n"))
    assert agent.write_input(b"b\n", 10)
    wait_for(lambda: not agent.is_silent)
    agent.terminate_agent(0)
    wait_for(lambda: agent.wait_for_end(0))
    assert recording.read_recording(first) == recording.FinishedRun(b"head\na\na\n", {})
    found = wait_for(lambda: recording.read_finished(second))
    assert found.output == b"head\nb\nb\n", "what nobody had read is there too"
    assert (found.facts["code"], found.facts["cause"]) == (-signal.SIGKILL, "terminated")
    agent.close()
