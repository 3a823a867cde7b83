"""Scratch folders: gone when they are left, swept when their process died, and never anybody else's."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from worker.verification.scratch import PREFIX, scratch_folder, sweep

_DIES = """
import os, signal, sys
from pathlib import Path
from worker.verification.scratch import scratch_folder
with scratch_folder(Path(sys.argv[1])) as fresh:
    (fresh / "deep").mkdir()
    (fresh / "deep" / "file").touch()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_scratch_folder_goes_when_it_is_left(tmp_path: Path) -> None:
    with scratch_folder(tmp_path / "made") as fresh:
        assert fresh.is_dir()
    assert list((tmp_path / "made").iterdir()) == []


def test_what_a_killed_process_left_is_swept_and_what_is_in_use_is_not(tmp_path: Path) -> None:
    with scratch_folder(tmp_path) as mine:
        subprocess.run([sys.executable, "-c", _DIES, str(tmp_path)], check=False)
        assert len(list(tmp_path.iterdir())) == 2
        assert sweep(tmp_path) == 1
        assert list(tmp_path.iterdir()) == [mine]
    assert sweep(tmp_path) == 0


def test_the_next_verification_sweeps_too(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", _DIES, str(tmp_path)], check=False)
    with scratch_folder(tmp_path) as mine:
        assert list(tmp_path.iterdir()) == [mine]


def test_a_link_and_a_file_of_that_name_are_let_alone(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (tmp_path / f"{PREFIX}link").symlink_to(precious)
    (tmp_path / f"{PREFIX}file").touch()
    assert sweep(tmp_path) == 0
    assert len(list(tmp_path.iterdir())) == 3


def test_a_folder_that_is_swept_before_it_is_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, real = [], tempfile.mkdtemp

    def made_and_swept(prefix: str, dir: Path) -> str:  # noqa: A002 - as mkdtemp has it
        made.append(real(prefix=prefix, dir=dir))
        if len(made) == 1:
            sweep(dir)
        return made[-1]

    monkeypatch.setattr(tempfile, "mkdtemp", made_and_swept)
    with scratch_folder(tmp_path) as fresh:
        assert fresh.is_dir()
        assert sweep(tmp_path) == 0
    assert len(made) == 2
