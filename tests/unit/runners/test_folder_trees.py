"""Folders that an agent has filled: deeper than the standard library walks, and with links out of them."""

import errno
import json
import multiprocessing
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from api_client.contract.session_paths import session_directory
from worker.files.folder_clearing import OldFolder, find_old_folders, remove_folder
from worker.files.folder_trees import MOST_LEVELS, move_entry, remove_tree, temporary_folder, walk_tree
from worker.files.safe_io import open_folder
from worker.verification.gates.output_tree import copy_files, scan_tree


def make_deep(top: Path, levels: int = 1500, name: str = "d") -> None:
    """Make a folder so many levels deep, with a file at the bottom, from below: no path of it is needed."""
    top.mkdir()
    at = os.open(top, os.O_RDONLY)
    for _ in range(levels):
        os.mkdir(name, dir_fd=at)
        below = os.open(name, os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = below
    os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=at))
    os.close(at)


@pytest.mark.parametrize("ignore_errors", [False, True])
@pytest.mark.parametrize(("levels", "name"), [(1500, "d"), (600, "n" * 200)])
def test_a_folder_of_any_depth_is_removed(tmp_path: Path, levels: int, name: str, ignore_errors: bool) -> None:
    make_deep(tmp_path / "top", levels, name)
    remove_tree(tmp_path / "top", ignore_errors=ignore_errors)
    assert list(tmp_path.iterdir()) == []


def test_links_are_removed_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "kept").touch()
    make_deep(tmp_path / "top")
    (tmp_path / "top" / "link").symlink_to(tmp_path / "other")
    remove_tree(tmp_path / "top")
    assert [path.name for path in tmp_path.rglob("*")] == ["other", "kept"]


def be_nobody(work: Callable[..., None], *args: object) -> None:
    """Do ``work`` in the current folder as a user who is bound by permissions: in a child process if this is root."""
    if os.geteuid():
        work(*args)
        return
    os.chown(".", 65534, 65534)
    child = multiprocessing.get_context("fork").Process(target=_change_user, args=(work, *args))
    child.start()
    child.join()
    if child.exitcode == errno.EINVAL:
        pytest.skip("this root may not become another user")
    assert child.exitcode == 0


def _change_user(work: Callable[..., None], *args: object) -> None:
    try:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
    except OSError:
        os._exit(errno.EINVAL)
    work(*args)


def remove_closed(mode: int, levels: int, ignore_errors: bool) -> None:
    """Remove a folder in which folders of a mode have content, at the top, below each other and at the bottom."""
    top = Path("top")
    make_deep(top, levels)
    for closed in (top / "closed", top / "d/d/closed", top):
        (closed / "inside" / "below").mkdir(parents=True)
        (closed / "inside" / "file").touch()
        (closed / "link").symlink_to(Path("kept").absolute())
        (closed / "inside").chmod(mode)
        closed.chmod(mode)
    remove_tree(top, ignore_errors=ignore_errors)
    assert not os.path.lexists(top)


@pytest.mark.parametrize(
    ("mode", "levels", "ignore_errors"),
    [(0o000, 3, False), (0o000, 1100, False), *((mode, 1100, True) for mode in (0o000, 0o300, 0o500, 0o600))],
)
def test_a_folder_whose_owner_may_not_enter_it_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int, levels: int, ignore_errors: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kept").mkdir(mode=0o555)
    (tmp_path / "kept" / "file").touch()
    be_nobody(remove_closed, mode, levels, ignore_errors)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "kept"]
    assert (tmp_path / "kept").stat().st_mode & 0o777 == 0o555, "a link was followed"


def remove_half() -> None:
    """Remove a deep folder in a folder that keeps one of its names."""
    Path("fixed").mkdir()
    make_deep(Path("fixed/top"), 1100)
    (Path("fixed/top") / "file").touch()
    Path("fixed").chmod(0o500)
    with pytest.raises(PermissionError):
        remove_tree(Path("fixed/top"))
    remove_tree(Path("fixed/top"), ignore_errors=True)
    assert list(Path("fixed/top").iterdir()) == []


def test_what_cannot_be_removed_is_an_error_and_all_else_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    be_nobody(remove_half)


def test_what_is_missing_is_an_error_unless_errors_are_ignored(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        remove_tree(tmp_path / "top")
    remove_tree(tmp_path / "top", ignore_errors=True)


def move_closed() -> None:
    """Move a folder that its owner may not change, a file and a link."""
    for name in ("root/session/attempts/a/closed", "target"):
        Path(name).mkdir(parents=True)
    (Path("root/session/attempts/a") / "link").symlink_to("closed")
    for closed in ("root/session/attempts/a/closed", "root/session/attempts/a"):
        Path(closed).chmod(0o500)
    assert remove_folder(OldFolder("attempt", Path("root/session/attempts/a"), "s", 0), lambda _: False)
    assert sorted(map(str, Path().rglob("*"))) == ["root", "root/session", "root/session/attempts", "target"]
    for name in ("closed", "unreadable"):
        Path("root", name).mkdir()
    Path("root/unreadable").chmod(0)
    Path("root/closed").chmod(0o500)
    with open_folder("root") as source, open_folder("target") as target:
        for name in ("closed", "unreadable"):
            move_entry(name, source, target, f"{name}.new")
    assert sorted(each.name for each in Path("target").iterdir()) == ["closed.new", "unreadable.new"]


def test_a_folder_that_its_owner_may_not_change_is_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    be_nobody(move_closed)


def copy_closed() -> None:
    """Copy an output of which one file may not be read."""
    Path("output").mkdir()
    for name in ("a", "b", "c"):
        Path("output", name).write_text(name)
    Path("output/b").chmod(0)
    copy_files(scan_tree(Path("output")), Path("copy"), skip_closed=True)
    assert sorted(path.name for path in Path("copy").iterdir()) == ["a", "c"]


def test_a_file_that_may_not_be_read_keeps_no_other_from_being_copied_for_the_next_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with temporary_folder("closed-") as folder:
        monkeypatch.chdir(folder)
        be_nobody(copy_closed)


def find_closed(closed: str) -> None:
    """Find and remove old sessions and attempts, one of which an agent has closed to its owner."""
    for name in ("shut", "well"):
        Path(f"projects/{name}/attempts/a").mkdir(parents=True)
        Path(f"projects/{name}/status.json").write_text(json.dumps({"session_id": name}))
    for mode in (0o000, 0o200):
        Path("projects", "shut", closed).chmod(mode)
        of_attempts, of_sessions = (
            [
                *find_old_folders(
                    Path("projects"), now=2e12, session_seconds=age, attempt_seconds=1, live=lambda _: False
                )
            ]
            for age in (0, 1)
        )
        assert ("attempt", "well") in [(old.what, old.session_id) for old in of_attempts]
    assert [(old.what, old.session_id) for old in of_sessions] == [("session", "shut"), ("session", "well")]
    assert all(remove_folder(old, lambda _: False) for old in of_sessions)
    assert list(Path("projects").iterdir()) == []


@pytest.mark.parametrize("closed", ["", "attempts", "attempts/a"])
def test_a_folder_that_an_agent_closed_keeps_no_other_from_being_cleared_away(
    monkeypatch: pytest.MonkeyPatch, closed: str
) -> None:
    with temporary_folder("closed-") as folder:  # nobody may follow the path of tmp_path
        monkeypatch.chdir(folder)
        be_nobody(find_closed, closed)


def test_a_live_session_is_not_cleared_away_where_its_id_is_in_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    session_directory(tmp_path, "chat 1").mkdir()  # an agent removed status.json, or closed the folder
    found = find_old_folders(
        tmp_path, now=2e12, session_seconds=1, attempt_seconds=1, live=lambda session_id: session_id == "chat 1"
    )
    assert list(found) == []


def test_a_temporary_folder_is_removed_however_deep_it_is() -> None:
    with temporary_folder("deep-") as folder:
        make_deep(folder / "top")
    assert not folder.exists()


def test_a_walk_ends_at_a_depth_that_no_project_has(tmp_path: Path) -> None:
    make_deep(tmp_path / "top")
    assert len(list(walk_tree(tmp_path / "top"))) == MOST_LEVELS + 1
    remove_tree(tmp_path / "top")
