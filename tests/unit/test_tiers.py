"""The closing lines of a test run, and what is in the wheel that is tested."""

import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.lab.wheel import readme_extras, supported
from tests.plain import plain_environment
from tests.ports import free_port
from tests.tiers import RECORD, closing_lines, is_long, long_files, recorded, seconds_of

ROOT = Path(__file__).parents[2]


def report(nodeid: str, when: str = "call", duration: float = 1.0) -> pytest.TestReport:
    return pytest.TestReport(nodeid, ("", 0, ""), {}, "passed", None, when, duration=duration)  # type: ignore[arg-type]


def test_each_tier_closes_with_its_counts_and_its_seconds_set_up_included() -> None:
    stats: dict[str, list[Any]] = {
        "passed": [report("tests/unit/test_a.py::test_b"), report("tests/fault/test_c.py::test_d[::x]", duration=30.0)],
        "skipped": [report("tests/unit/web/test_e.py::test_f", "setup", 0.0)],
        "": [report("tests/fault/test_c.py::test_d[::x]", "setup", 2.0)],
        "deselected": ["not a report"],
    }
    assert closing_lines(stats) == [
        "unit         1 passed, 1 skipped (1 s of tests)",
        "crashes      1 passed (32 s of tests)",
    ]


def test_the_wheel_is_installed_as_the_readme_says_on_every_python_it_supports() -> None:
    assert readme_extras((ROOT / "README.md").read_text()) == "demo,flower,otel"
    assert supported() == ["3.11", "3.12", "3.13"]


@pytest.mark.parametrize("text", ["nothing", 'pip install ".[a]" or pip install ".[b]"'])
def test_a_readme_with_no_or_two_installations_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must name one"):
        readme_extras(text)


def test_make_test_leaves_out_the_slowest_files_and_takes_what_has_no_record() -> None:
    durations = {"a": 50.0, "b": 7.0, "c": 5.0, "d": 0.1, "e": None}
    for most, left_out in ((100.0, "e"), (61.9, "ea"), (12.1, "ea"), (12.0, "eab"), (0.0, "eabcd")):
        assert long_files(durations, most) == set(left_out)


def test_the_longest_files_come_first_and_those_not_measured_yet_before_them() -> None:
    durations = {"a": 5.0, "b": None, "c": 7.0}
    ids = ["a::one", "a::two", "new::one", "b::one", "c::one"]
    in_order = sorted(ids, key=lambda nodeid: seconds_of(nodeid, durations), reverse=True)
    assert in_order == ["b::one", "c::one", "a::one", "a::two", "new::one"]


def test_a_run_records_what_each_file_took_and_leaves_the_others() -> None:
    stats = {"passed": [report("a.py::test_b", "setup", 2.0), report("a.py::test_b[1]", duration=1.26)], "": [7]}
    assert recorded({"a.py": None, "z.py": 3.0}, stats) == {"a.py": 3.3, "z.py": 3.0}


@pytest.mark.parametrize(
    ("nodeid", "long"),
    [
        ("tests/integration/test_that_is_new.py::test_x", False),
        ("tests/fault/test_guard.py::test_x[1]", False),
        ("tests/fault/test_crash_matrix.py::test_x[folder.made-kill]", False),
        ("tests/fault/test_crash_matrix.py::test_x[folder.made-stop]", True),
    ],
)
def test_the_short_crash_round_is_of_make_test_however_long_it_takes(nodeid: str, long: bool) -> None:
    assert is_long(nodeid) is long


# What tests bring along: the environment is the same in every shell, and a port is given once.


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


def test_every_recorded_file_is_there() -> None:
    assert [file for file in json.loads(RECORD.read_text()) if not (ROOT / file).exists()] == []
