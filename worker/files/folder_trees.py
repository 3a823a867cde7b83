"""Walks and removes folders that agents have filled, however deep they are.

The functions of the standard library call themselves for each level: they raise ``RecursionError`` below about 500
levels, or hold a file descriptor for each.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from worker.files.safe_io import SHORT_OF, open_folder

#: Deepest level that is read. No project has as many.
MOST_LEVELS = 128


def walk_tree(top: Path) -> Iterator[tuple[str, list[str], list[str]]]:
    """Walk a folder as ``os.walk`` does, but at most ``MOST_LEVELS`` deep."""
    above = os.fspath(top).count(os.sep)
    for place, folders, files in os.walk(top):
        if place.count(os.sep) - above >= MOST_LEVELS:
            folders.clear()
        yield place, folders, files


def remove_tree(path: Path, *, ignore_errors: bool = False) -> None:
    """Delete a folder with everything in it, without following links.

    Raises ``OSError``, unless ``ignore_errors``.
    """
    try:
        shutil.rmtree(path)
    except (RecursionError, OSError) as error:
        if isinstance(error, RecursionError) or error.errno in SHORT_OF:
            _remove_deep_tree(path, ignore_errors)
        elif ignore_errors:
            shutil.rmtree(path, ignore_errors=True)  # what can go does
        else:
            raise


def _remove_deep_tree(path: Path, ignore_errors: bool) -> None:
    try:
        with open_folder(path) as top:
            _flatten_tree(top)
    except OSError:
        if not ignore_errors:
            raise
    shutil.rmtree(path, ignore_errors=ignore_errors)


def _flatten_tree(top: int) -> None:
    """Move all folders below an open folder directly into it."""
    waiting = _list_folders(top)
    while waiting:
        with open_folder(waiting.pop(), top) as folder:
            for name in _list_folders(folder):
                moved = f".{secrets.token_hex(8)}"
                os.rename(name, moved, src_dir_fd=folder, dst_dir_fd=top)
                waiting.append(moved)


def _list_folders(folder: int) -> list[str]:
    with os.scandir(folder) as entries:
        return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
