"""Walks, moves and removes folders that agents have filled, however deep they are, and whatever their permissions.

The functions of the standard library call themselves for each level: they raise ``RecursionError`` below about 500
levels, or hold a file descriptor for each.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from worker.files.safe_io import open_folder

#: Deepest level that is read. No project has as many.
MOST_LEVELS = 128
#: Opens a folder that its owner may not read either, where the system can.
_ANY_FOLDER = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def walk_tree(top: Path) -> Iterator[tuple[str, list[str], list[str]]]:
    """Walk a folder as ``os.walk`` does, but at most ``MOST_LEVELS`` deep."""
    above = os.fspath(top).count(os.sep)
    for place, folders, files in os.walk(top):
        if place.count(os.sep) - above >= MOST_LEVELS:
            folders.clear()
        yield place, folders, files


@contextlib.contextmanager
def temporary_folder(prefix: str) -> Iterator[Path]:
    """Yield a new temporary folder, which is removed afterwards as far as that is possible."""
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    try:
        yield folder
    finally:
        remove_tree(folder, ignore_errors=True)


def move_entry(name: str, source: int, target: int, new_name: str = "") -> None:
    """Move an entry from one open folder to another, also a folder that its owner may not change.

    Such a folder's owner may do everything in it afterwards. Raises ``OSError``.
    """
    try:
        os.rename(name, new_name or name, src_dir_fd=source, dst_dir_fd=target)
    except PermissionError:
        _permit_owner(name, source)
        os.rename(name, new_name or name, src_dir_fd=source, dst_dir_fd=target)


def remove_tree(path: Path | str, *, ignore_errors: bool = False, dir_fd: int | None = None) -> None:
    """Delete a folder with everything in it, also folders that their owner may not enter, without following links.

    ``path`` is relative to the open folder ``dir_fd``, if given. Raises ``OSError``, unless ``ignore_errors``: then it
    deletes what it can.
    """
    try:
        shutil.rmtree(path, dir_fd=dir_fd)
    except (RecursionError, OSError):
        with contextlib.suppress(OSError) if ignore_errors else contextlib.nullcontext():
            _remove_odd_tree(path, dir_fd)


def _remove_odd_tree(path: Path | str, parent: int | None) -> None:
    """Delete a folder that is too deep or too closed for ``shutil.rmtree``, or what can be deleted of it."""
    errors: list[OSError] = []
    _permit_owner(path, parent)
    with _collect_error(errors), open_folder(path, parent) as top:
        waiting = _empty_folder(top, top, errors)
        while waiting:
            name = waiting.pop()
            with _collect_error(errors):
                with open_folder(name, top) as folder:
                    waiting += _empty_folder(folder, top, errors)
                os.rmdir(name, dir_fd=top)
    try:
        os.rmdir(path, dir_fd=parent)
    except OSError as error:
        raise errors[0] if errors else error from None


def _empty_folder(folder: int, top: int, errors: list[OSError]) -> list[str]:
    """Delete what is in an open folder, but move its folders to ``top``, and return their names there."""
    found: list[str] = []
    with os.scandir(folder) as scan:
        entries = list(scan)
    for entry in entries:
        with _collect_error(errors):
            if not entry.is_dir(follow_symlinks=False):
                os.unlink(entry.name, dir_fd=folder)
                continue
            _permit_owner(entry.name, folder)
            name = entry.name
            if folder != top:
                name = f".{secrets.token_hex(8)}"
                os.rename(entry.name, name, src_dir_fd=folder, dst_dir_fd=top)
            found.append(name)
    return found


def _permit_owner(name: Path | str, parent: int | None = None) -> None:
    """Permit a folder's owner everything in it, if the system lets this process do so."""
    with contextlib.suppress(OSError):
        fd = os.open(name, _ANY_FOLDER, dir_fd=parent)
        try:
            Path(f"/proc/self/fd/{fd}").chmod(0o700)  # fchmod refuses such a descriptor
        finally:
            os.close(fd)


@contextlib.contextmanager
def _collect_error(errors: list[OSError]) -> Iterator[None]:
    """Keep the first error of all: each keeps its stack, and an agent can cause millions."""
    try:
        yield
    except OSError as error:
        if not errors:
            errors.append(error)
