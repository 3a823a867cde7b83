"""Row 50: a HELIX_ROOT nobody can work in stops a command at once, in one line."""

import subprocess
from pathlib import Path

import pytest

from tests.installation import turns


def run(root: Path | str, *command: str, limit: str = "") -> subprocess.CompletedProcess[str]:
    environ = {"PATH": "/usr/bin:/bin", "HELIX_ROOT": str(root)}
    line = ["prlimit", f"--fsize={limit}", *turns(*command)] if limit else turns(*command)
    return subprocess.run(line, env=environ, capture_output=True, text=True, timeout=180, check=False)


@pytest.mark.parametrize("command", ["up", "run worker", "run relay"])
@pytest.mark.parametrize("kind", ["missing", "a file", "a link to /", "/"])
def test_50_a_root_that_is_none_stops_the_command_at_once(tmp_path: Path, command: str, kind: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("/")
    roots = {"missing": tmp_path / "none", "a file": tmp_path / "file", "a link to /": tmp_path / "link", "/": "/"}
    done = run(roots[kind], *command.split())
    assert done.returncode == 2, done
    assert done.stderr.startswith("turns: HELIX_ROOT=")
    assert "must" in done.stderr
    assert done.stderr.count("\n") == 1


def test_50_a_root_that_cannot_be_written_is_named_with_the_reason() -> None:
    """/proc takes no folder from anybody, also not from root."""
    done = run("/proc", "up")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert done.stderr.startswith("turns: /proc/.helix: ")


def test_50_a_disk_without_room_is_one_line(tmp_path: Path) -> None:
    """A file may have no byte here, as on a disk that is full."""
    done = run(tmp_path, "up", limit="0")
    assert done.returncode != 0
    assert "Traceback" not in done.stderr + done.stdout
    assert 0 < len(done.stderr.strip().splitlines()) < 10
