"""A sandbox that waits is shown one session's files: under their names, as they may be used, and nothing else."""

import math
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support import alive, wait_for
from worker.runners.sandbox import bubblewrap
from worker.runners.sandbox.agent_process import AgentExit, AgentProcess
from worker.runners.sandbox.bubblewrap import SandboxMount
from worker.runners.sandbox.guard_client import AgentProcesses
from worker.runners.sandbox.process_tags import children_of

#: Starts a sandbox with a script that waits for one line of input.
Start = Callable[[str], AgentProcess]


@pytest.fixture
def sessions(tmp_path: Path) -> Path:
    for name in ("mine/context", "other/context", ".spares/one/work"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("mine", "other"):
        (tmp_path / name / "context" / "a.md").write_text(f"context-of-{name}")
        (tmp_path / name / "feedback.md").write_text(f"feedback-of-{name}")
    return tmp_path


@pytest.fixture
def agents() -> Iterator[AgentProcesses]:
    agents = AgentProcesses()
    yield agents
    agents.stop_guard()


@pytest.fixture
def start(agents: AgentProcesses, sessions: Path) -> Start:
    if problem := bubblewrap.find_network_obstacle():
        pytest.skip(problem)

    def started(script: str) -> AgentProcess:
        work = sessions / ".spares/one/work"
        command = bubblewrap.sandbox_command(
            ["sh", "-c", f"read x; {script}"], work, [SandboxMount(work, writable=True)]
        )
        env = {"PATH": os.defpath}
        return agents.spawn_agent(command, mark="t.1.1", env=env, cwd=work, stdin=None, lease_ends=math.inf)

    return started


def show(process: AgentProcess, sessions: Path) -> str:
    """The session "mine" takes the sandbox over."""
    (sessions / ".spares/one").rename(sessions / "mine/agent")
    (sessions / ".spares/one").symlink_to(sessions / "mine/agent")
    shown = [(str(sessions / "mine" / name), False) for name in ("context", "feedback.md", "input")]
    return process.add_mounts([(str(sessions / "mine/agent/work"), True), *shown], 30)


def output(process: AgentProcess) -> list[str]:
    """What it writes until it ends, once it has its line."""
    assert process.write_input(b"\n", 30)
    found = b""
    while (piece := process.read_output(30)) is not None:
        found += piece
    process.wait_for_end(30)
    return found.decode().splitlines()


def test_a_session_is_seen_in_its_sandbox_under_its_own_names_and_no_other_is(start: Start, sessions: Path) -> None:
    process = start(f"cd {sessions}; ls -A . mine; cat mine/context/a.md mine/feedback.md")
    assert show(process, sessions) == ""
    assert " ".join(output(process)) == (
        ".: .spares mine  mine: agent context feedback.md context-of-minefeedback-of-mine"
    )


def test_what_may_only_be_read_stays_as_it_is_and_the_agents_own_folder_is_one_under_two_names(
    start: Start, sessions: Path
) -> None:
    tries = ("echo x >mine/context/a.md", "touch mine/context/new", "mv mine/context/a.md mine/agent/work", "touch new")
    process = start(f"cd {sessions}; touch mine/agent/work/new; cat .spares/one/work/new; {'; '.join(tries)}")
    assert show(process, sessions) == ""
    assert output(process) == []
    assert [path.name for path in sessions.rglob("new")] == ["new"]
    assert (sessions / "mine/agent/work/new").exists()
    assert (sessions / "mine/context/a.md").read_text() == "context-of-mine"


@pytest.fixture
def bare(agents: AgentProcesses, sessions: Path) -> AgentProcess:
    """An agent that never has a sandbox, so that what mounts waits in vain."""
    return spawned(agents, sessions, "t.1.1", "sleep 600")


def spawned(agents: AgentProcesses, folder: Path, mark: str, script: str) -> AgentProcess:
    env = {"PATH": os.defpath}
    return agents.spawn_agent(["sh", "-c", script], mark=mark, env=env, cwd=folder, lease_ends=math.inf)


def test_an_agent_without_a_sandbox_is_shown_nothing_and_one_that_ends_meanwhile_disturbs_nobody(
    bare: AgentProcess, agents: AgentProcesses, sessions: Path
) -> None:
    with ThreadPoolExecutor(1) as pool:
        shown = pool.submit(show, bare, sessions)
        wait_for(lambda: len(children_of(agents.start_guard())) == 2)
        leaves_one = "env -i setsid sh -c '>left; exec sleep 600' & until [ -e left ]; do :; done; exit 3"
        other = spawned(agents, sessions, "t.1.2", leaves_one)
        assert other.wait_for_end(30) == AgentExit(code=3, pid=other.pid, swept=1)
        assert shown.result() == "it took too long"
    agents.end_agent("t.1.1")
    assert bare.add_mounts([], 30) == "the agent has ended"


def test_a_guard_that_dies_takes_along_what_is_mounting(
    bare: AgentProcess, agents: AgentProcesses, sessions: Path
) -> None:
    guard = agents.start_guard()
    with ThreadPoolExecutor(1) as pool:
        shown = pool.submit(show, bare, sessions)
        started = wait_for(lambda: len(found := children_of(guard)) == 2 and found)
        os.kill(guard, signal.SIGKILL)
        assert shown.result() == "the agent has ended"
    wait_for(lambda: not any(map(alive, started)))
