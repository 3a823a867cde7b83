"""Folders that an agent has filled: deeper than the standard library walks, and with links out of them."""

import os
from pathlib import Path

import pytest

from worker.files.folder_trees import MOST_LEVELS, remove_tree, walk_tree


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


def test_what_is_missing_is_an_error_unless_errors_are_ignored(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        remove_tree(tmp_path / "top")
    remove_tree(tmp_path / "top", ignore_errors=True)


def test_a_walk_ends_at_a_depth_that_no_project_has(tmp_path: Path) -> None:
    make_deep(tmp_path / "top")
    assert len(list(walk_tree(tmp_path / "top"))) == MOST_LEVELS + 1
    remove_tree(tmp_path / "top")
