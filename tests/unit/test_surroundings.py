"""What tests bring along: the environment is the same in every shell, and a port is given once."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from tests.plain import plain_environment
from tests.ports import free_port

ROOT = Path(__file__).parents[2]


def test_what_a_shell_sets_for_its_own_programs_is_not_there_in_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    foreign = ("FORCE_COLOR", "CDPATH", "PYTEST_ADDOPTS", "PYTHONWARNINGS", "http_proxy", "HELIX_LOCALE", "LANGUAGE")
    ours = ("PYTHONPATH", "PATH", "TESTS_WAIT_SECONDS", "FUZZ_EXAMPLES")
    for name in (*foreign, *ours[2:], "PYTHONPATH"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    plain_environment()
    assert not [name for name in foreign if name in os.environ]
    assert not [name for name in ours if name not in os.environ]
    assert (os.environ["TZ"], time.timezone) == ("UTC", 0)
    monkeypatch.undo()
    plain_environment()


def test_a_port_is_given_once_and_is_none_that_a_connection_may_take() -> None:
    ports = [free_port() for _ in range(50)]
    assert len(set(ports)) == len(ports)
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert first <= 21_000 or max(ports) < first


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a checkout")
def test_git_ignores_what_the_example_of_phases_writes() -> None:
    written = "docs/examples/phases/phases/summary/status.json"
    assert subprocess.run(["git", "check-ignore", "-q", written], cwd=ROOT, check=False).returncode == 0
