"""Sessions lie apart on the disk, where the file system can do that."""

from __future__ import annotations

import subprocess
from pathlib import Path

from worker.files.spreading import spread


def flags(folder: Path) -> str:
    """What ``lsattr`` shows; empty where there are no such flags, or no such tool."""
    try:
        done = subprocess.run(["lsattr", "-d", folder], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return done.stdout.split()[0]


def test_folders_of_sessions_are_spread_where_the_file_system_can(tmp_path: Path) -> None:
    (tmp_path / "by_hand").mkdir()
    (tmp_path / "ours").mkdir()
    if before := flags(tmp_path / "by_hand"):
        subprocess.run(["chattr", "+T", tmp_path / "by_hand"], capture_output=True, check=False)
    for _ in range(2):
        spread(tmp_path / "ours")
        assert flags(tmp_path / "ours") == flags(tmp_path / "by_hand")
    assert flags(tmp_path) == before, "no other folder is changed"


def test_what_cannot_be_spread_stays_as_it_is(tmp_path: Path) -> None:
    spread(tmp_path / "missing")
    (tmp_path / "link").symlink_to(tmp_path)
    spread(tmp_path / "link")
    assert "T" not in flags(tmp_path)
    spread(Path("/proc"))
