"""A machine on which agents are killed: the kernel's count, or kills in a row, make it sick for a while."""

from __future__ import annotations

from pathlib import Path

import pytest

from worker.runners.base import KILLED_BY, OTHERS, Completion, Verdict
from worker.turns.leases import host
from worker.turns.leases.host import Host, oom_counter, oom_kills

KILLED = Completion(verdict=Verdict.INCOMPLETE, reason="", evidence={KILLED_BY: OTHERS})
WELL = Completion(verdict=Verdict.COMPLETE, reason="")


@pytest.fixture
def counter(tmp_path: Path) -> Path:
    file = tmp_path / "memory.events"
    file.write_text("low 0\noom 3\noom_kill 2\n")
    return file


def host_of(tmp_path: Path, counter: Path) -> Host:
    return Host(tmp_path, lambda _: "", counter)


def heard(machine: Host, *completions: Completion) -> str:
    """Why the machine is sick once these runs have ended, as a worker looks."""
    for completion in completions:
        if machine.heard(completion):
            machine.look()
    return machine.sick


def test_what_the_kernel_kills_in_our_cgroup_makes_the_machine_sick_for_a_while_with_or_without_an_agent(
    tmp_path: Path, counter: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = host_of(tmp_path, counter)
    assert machine.watch() == "", "what was killed before is over"
    counter.write_text("oom_kill 3\n")
    assert "for want of memory" in machine.watch()
    assert "for want of memory" in machine.watch(), "it stays sick"
    monkeypatch.setattr(host, "_STARVED_SECONDS", 0.0)
    assert machine.watch() == "", "and is well again when nothing more was killed"


def test_the_count_of_the_whole_machine_tells_only_where_an_agent_of_ours_was_killed(
    tmp_path: Path, counter: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "_VMSTAT", counter)
    machine = host_of(tmp_path, counter)
    counter.write_text("oom_kill 3\n")
    assert machine.watch() == machine.look() == ""
    assert heard(machine, KILLED) == "", "nothing was killed for want of memory since"
    counter.write_text("oom_kill 4\n")
    assert machine.watch() == "", "a heartbeat between the kill and the end of its agent takes nothing for granted"
    assert "for want of memory" in heard(machine, KILLED)


def test_agents_killed_in_a_row_make_a_machine_sick_that_counts_nothing(tmp_path: Path) -> None:
    machine = host_of(tmp_path, tmp_path / "no such file")
    assert heard(machine, KILLED, KILLED, WELL, KILLED, KILLED) == ""
    assert heard(machine, KILLED) == "3 agents in a row were killed, and not by their worker"


@pytest.mark.parametrize(
    ("cgroup", "file", "text"),
    [
        ("0::/system.slice/turns.service\n", "system.slice/turns.service/memory.events", "oom 1\noom_kill 7\n"),
        ("0::/\n", "memory.events", "oom 1\noom_kill 7\n"),
        ("9:cpu:/x\n4:memory:/a/b\n0::/\n", "memory/a/b/memory.oom_control", "under_oom 0\noom_kill 7\n"),
        ("4:memory:/docker/abc\n", "memory/memory.oom_control", "under_oom 0\noom_kill 7\n"),
    ],
)
def test_the_kernels_count_is_that_of_our_own_cgroup(cgroup: str, file: str, text: str, tmp_path: Path) -> None:
    counter = tmp_path / "mounted" / file
    counter.parent.mkdir(parents=True)
    counter.write_text(text)
    (tmp_path / "cgroup").write_text(cgroup)
    found = oom_counter(tmp_path, tmp_path / "mounted")
    assert (found.resolve(), oom_kills(found)) == (counter.resolve(), 7)


@pytest.mark.parametrize("text", ["", "oom_kill many\n", "word\n", "max 3\n"])
def test_without_a_count_of_our_cgroup_that_can_be_read_it_is_that_of_the_machine(text: str, tmp_path: Path) -> None:
    (tmp_path / "cgroup").write_text("0::/x\n")
    (tmp_path / "x").mkdir()
    (tmp_path / "x/memory.events").write_text(text)
    assert oom_counter(tmp_path, tmp_path) == Path("/proc/vmstat")
