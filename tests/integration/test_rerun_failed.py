"""A test that fails beside others runs once more, alone (tests/rerun_failed.py)."""

import os
import subprocess
import sys
from pathlib import Path

from tests.rerun_failed import MOST_AGAIN

ROOT = Path(__file__).parents[2]
FAILS_ONCE = """
from pathlib import Path
def test_fails_once():
    mark = Path(__file__).with_name("mark")
    seen = mark.exists()
    mark.touch()
    assert seen
def test_passes():
    Path(__file__).with_name("passes").open("a").write("x")
"""


def run(folder: Path, text: str) -> subprocess.CompletedProcess[str]:
    (folder / "test_some.py").write_text(text)
    (folder / "pytest.ini").write_text("[pytest]\n")
    command = [sys.executable, "-m", "tests.rerun_failed", "-q", "-p", "no:xdist", "."]
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, check=False)


def test_what_fails_beside_others_and_passes_alone_is_green_and_named(tmp_path: Path) -> None:
    ended = run(tmp_path, FAILS_ONCE)
    assert ended.returncode == 0, ended.stdout
    assert "UNSTEADY test_some.py::test_fails_once: failed beside others, passed alone." in ended.stdout
    assert (tmp_path / "passes").read_text() == "x", "only what failed runs again"


def test_what_fails_twice_is_red(tmp_path: Path) -> None:
    ended = run(tmp_path, "def test_fails():\n    assert 0\ndef test_passes():\n    pass\n")
    assert ended.returncode == 1
    assert "once more" in ended.stdout
    assert "UNSTEADY" not in ended.stdout


def test_many_failures_are_no_coincidence_and_run_once(tmp_path: Path) -> None:
    ended = run(tmp_path, "".join(f"def test_{n}():\n    assert 0\n" for n in range(MOST_AGAIN + 1)))
    assert ended.returncode == 1
    assert "once more" not in ended.stdout


def test_what_cannot_be_collected_is_red_at_once(tmp_path: Path) -> None:
    ended = run(tmp_path, "import nothing_of_that_name\n")
    assert ended.returncode == 2
    assert "once more" not in ended.stdout
