"""How many processes a worker has, and which share of its slots each gets."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from api_client.contract.settings import Settings
from worker.processes import programs
from worker.processes.cpus import usable_cpus


@pytest.mark.parametrize(
    ("processes", "runs", "checks", "shares"),
    [
        (1, 16, 2, [(16, 2)]),
        (2, 16, 2, [(8, 1), (8, 1)]),
        (3, 16, 2, [(6, 1), (5, 1), (5, 1)]),
        (4, 2, 5, [(1, 3), (1, 2)]),
        (8, 1, 2, [(1, 2)]),
    ],
)
def test_the_slots_of_a_worker_are_shared_out_and_no_process_is_without_one(
    processes: int, runs: int, checks: int, shares: list[tuple[int, int]]
) -> None:
    told = Settings(worker_processes=processes, run_slots=runs, check_slots=checks)
    assert [(share.run_slots, share.check_slots) for share in programs.shares(told)] == shares


def test_untold_there_is_a_process_for_each_cpu_that_may_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "usable_cpus", lambda: 3)
    assert len(programs.shares(Settings())) == 3


def test_the_quota_of_a_control_group_counts_rounded_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(8)))
    quota = tmp_path / "cpu.max"
    assert usable_cpus(quota) == 8
    for text, cpus in {"max 100000": 8, "400000 100000": 4, "150000 100000": 2, "50000 100000": 1, "": 8}.items():
        quota.write_text(text)
        assert usable_cpus(quota) == cpus, text


def test_commands_load_no_package_that_a_library_would_only_use_where_it_is_installed() -> None:
    look = (
        "import sys, worker.cli\n"
        "found = worker.cli.cli.get_command(None, sys.argv[1])\n"
        "left = sorted(n for n in sys.modules if n.partition('.')[0] in ('rich', 'opentelemetry'))\n"
        "import rich\n"
        "print(found.name, left)\n"
    )
    for command in ("worker", "up"):
        done = subprocess.run(
            [sys.executable, "-P", "-c", look, command], capture_output=True, text=True, check=True, env=os.environ
        )
        assert done.stdout == f"{command} []\n", "rich can still be imported, and nothing did"
