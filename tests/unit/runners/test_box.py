"""What is put into a box, when, and what follows where none can be made."""

from pathlib import Path

import pytest

from worker.runners.guard import box
from worker.runners.guard.box import Bind, BoxError, Level, boxed, failed, level


@pytest.fixture
def obstacle(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What keeps a box, or its network, from being made; nothing until a test says so."""
    said = {"box": "", "network": ""}
    monkeypatch.setattr(box, "obstacle", lambda: said["box"])
    monkeypatch.setattr(box, "network_obstacle", lambda: said["box"] or said["network"])
    return said


@pytest.mark.parametrize(
    ("mode", "wanted", "expected"),
    [
        ("off", True, Level()),
        ("auto", True, Level("bubblewrap", cut=True)),
        ("auto", False, Level()),
        ("required", True, Level("bubblewrap", cut=True)),
        ("required", False, Level("bubblewrap", cut=True)),
    ],
)
def test_who_is_put_into_a_box(obstacle: dict[str, str], mode: str, wanted: bool, expected: Level) -> None:
    assert level(mode, wanted=wanted) == expected


@pytest.mark.parametrize(
    ("what", "goes_on"), [("box", Level()), ("network", Level("bubblewrap", cut=False))], ids=["box", "network"]
)
def test_without_a_whole_box_auto_takes_what_there_is_and_required_does_not(
    obstacle: dict[str, str], what: str, goes_on: Level
) -> None:
    obstacle[what] = "the kernel says no"
    assert level("auto", wanted=True) == goes_on
    with pytest.raises(BoxError, match="HELIX_BOX=required, but the kernel says no"):
        level("required", wanted=False)


def test_a_kernel_that_allows_no_network_of_its_own_is_told_from_one_that_allows_no_box(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = tmp_path / "bwrap"
    said = "bwrap: loopback: Failed RTM_NEWADDR: Operation not permitted"
    program.write_text(f'#!/bin/sh\ncase "$*" in *--unshare-net*) echo "{said}" >&2; exit 1;; esac\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert box.obstacle() == ""
    assert box.network_obstacle() == f"bubblewrap cannot make a box with its own network here: {said}"


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
