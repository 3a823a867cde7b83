"""What is put into a box, when, and what follows where none can be made."""

from __future__ import annotations

from pathlib import Path

import pytest

from worker.runners.guard import box
from worker.runners.guard.box import Bind, BoxError, boxed, failed, level


@pytest.fixture
def obstacle(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What keeps a box from being made; empty until a test says so."""
    said = [""]
    monkeypatch.setattr(box, "obstacle", lambda: said[0])
    return said


@pytest.mark.parametrize(
    ("mode", "wanted", "expected"),
    [
        ("off", True, "none"),
        ("auto", True, "bubblewrap"),
        ("auto", False, "none"),
        ("required", True, "bubblewrap"),
        ("required", False, "bubblewrap"),
    ],
)
def test_who_is_put_into_a_box(obstacle: list[str], mode: str, wanted: bool, expected: str) -> None:
    assert level(mode, wanted=wanted) == expected


def test_without_a_working_box_auto_goes_on_and_required_does_not(obstacle: list[str]) -> None:
    obstacle[0] = "bubblewrap is not installed"
    assert level("auto", wanted=True) == "none"
    with pytest.raises(BoxError, match="HELIX_BOX=required, but bubblewrap is not installed"):
        level("required", wanted=False)


def test_a_box_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert box.obstacle() == "bubblewrap is not installed (no bwrap on PATH)"


def test_a_box_that_cannot_be_made_here_says_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "bwrap"
    program.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert box.obstacle() == "bubblewrap cannot make a box here: bwrap: No permissions to create new namespace"


def test_the_later_of_two_binds_counts_and_all_come_after_tmp(tmp_path: Path) -> None:
    command = boxed(["agent", "-p"], tmp_path, [Bind(tmp_path, writable=True), Bind(tmp_path / "settings.json")])
    folder, file = command.index("--bind-try"), command.index(str(tmp_path / "settings.json"))
    assert command.index("/tmp") < folder < file
    assert command[file - 1] == "--ro-bind-try"
    assert command[-3:] == ["--", "agent", "-p"]


def test_a_folder_that_lies_in_another_is_bound_after_it(tmp_path: Path) -> None:
    own, project = Bind(tmp_path / "work" / "run", writable=True), Bind(tmp_path / "work")
    marks, program = Bind(tmp_path / "work" / "run" / "marks"), Bind(Path("/usr/bin/true"))
    assert box.nested(own, [program, project, marks]) == [project, own, program, marks]


def test_what_bubblewrap_itself_says_is_told_from_what_an_agent_says() -> None:
    assert failed("bwrap: Can't mkdir /x: Read-only file system\n") == "bwrap: Can't mkdir /x: Read-only file system"
    assert failed("error: bwrap: no\n") == ""
