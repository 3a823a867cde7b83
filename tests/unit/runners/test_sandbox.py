"""What is put into a sandbox, when, and what follows where none can be made."""

from pathlib import Path

import pytest

from worker.runners.sandbox import bubblewrap
from worker.runners.sandbox.bubblewrap import (
    Isolation,
    SandboxError,
    SandboxMount,
    choose_isolation,
    find_sandbox_error,
    sandbox_command,
)


@pytest.fixture
def obstacle(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What keeps a sandbox, or its network, from being made; nothing until a test says so."""
    said = {"sandbox": "", "network": ""}
    monkeypatch.setattr(bubblewrap, "find_obstacle", lambda: said["sandbox"])
    monkeypatch.setattr(bubblewrap, "find_network_obstacle", lambda: said["sandbox"] or said["network"])
    return said


@pytest.mark.parametrize(
    ("mode", "wanted", "expected"),
    [
        ("off", True, Isolation()),
        ("auto", True, Isolation("bubblewrap", cut=True)),
        ("auto", False, Isolation()),
        ("required", True, Isolation("bubblewrap", cut=True)),
        ("required", False, Isolation("bubblewrap", cut=True)),
    ],
)
def test_who_is_put_into_a_box(obstacle: dict[str, str], mode: str, wanted: bool, expected: Isolation) -> None:
    assert choose_isolation(mode, wanted=wanted) == expected


@pytest.mark.parametrize(
    ("what", "goes_on"),
    [("sandbox", Isolation()), ("network", Isolation("bubblewrap", cut=False))],
    ids=["sandbox", "network"],
)
def test_without_a_whole_box_auto_takes_what_there_is_and_required_does_not(
    obstacle: dict[str, str], what: str, goes_on: Isolation
) -> None:
    obstacle[what] = "the kernel says no"
    assert choose_isolation("auto", wanted=True) == goes_on
    with pytest.raises(SandboxError, match="HELIX_SANDBOX=required, but the kernel says no"):
        choose_isolation("required", wanted=False)


def test_a_kernel_that_allows_no_network_of_its_own_is_told_from_one_that_allows_no_box(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = tmp_path / "bwrap"
    said = "bwrap: loopback: Failed RTM_NEWADDR: Operation not permitted"
    program.write_text(f'#!/bin/sh\ncase "$*" in *--unshare-net*) echo "{said}" >&2; exit 1;; esac\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert bubblewrap.find_obstacle() == ""
    assert bubblewrap.find_network_obstacle() == f"bubblewrap cannot make a sandbox with its own network here: {said}"


def test_a_box_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert bubblewrap.find_obstacle() == "bubblewrap is not installed (no bwrap on PATH)"


def test_a_box_that_cannot_be_made_here_says_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "bwrap"
    program.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert (
        bubblewrap.find_obstacle()
        == "bubblewrap cannot make a sandbox here: bwrap: No permissions to create new namespace"
    )


def test_the_later_of_two_binds_counts_and_all_come_after_tmp(tmp_path: Path) -> None:
    command = sandbox_command(
        ["agent", "-p"], tmp_path, [SandboxMount(tmp_path, writable=True), SandboxMount(tmp_path / "settings.json")]
    )
    folder, file = command.index("--bind-try"), command.index(str(tmp_path / "settings.json"))
    assert command.index("/tmp") < folder < file
    assert command[file - 1] == "--ro-bind-try"
    assert command[-3:] == ["--", "agent", "-p"]


def test_a_folder_that_lies_in_another_is_bound_after_it(tmp_path: Path) -> None:
    own, project = SandboxMount(tmp_path / "work" / "run", writable=True), SandboxMount(tmp_path / "work")
    marks, program = SandboxMount(tmp_path / "work" / "run" / "marks"), SandboxMount(Path("/usr/bin/true"))
    assert bubblewrap.insert_mount(own, [program, project, marks]) == [project, own, program, marks]


def test_what_bubblewrap_itself_says_is_told_from_what_an_agent_says() -> None:
    assert (
        find_sandbox_error("bwrap: Can't mkdir /x: Read-only file system\n")
        == "bwrap: Can't mkdir /x: Read-only file system"
    )
    assert find_sandbox_error("error: bwrap: no\n") == ""
