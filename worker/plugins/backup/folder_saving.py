"""Adds folders to an archive while other processes write in them."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path

from worker.files.folder_trees import MOST_LEVELS
from worker.plugins.backup.archive import ArchiveWriter

#: How often a folder is listed again while its entries keep changing.
_LOOKS = 5
_IN_MEMORY = 16 * 2**20
#: Bytes of a path from which on the kernel refuses it, with room for the name of an entry.
_LONGEST_PATH = 4096 - 256


def save_folder(archive: ArchiveWriter, path: Path, name: str, skip: Callable[[Path], bool]) -> int:
    """Add a folder and its content to an archive. Return how many entries were left out.

    Those are links, sockets, pipes, and folders too deep to be restored.
    """
    facts = path.stat(follow_symlinks=False)
    archive.add_folder(name, mode=facts.st_mode, mtime_ns=facts.st_mtime_ns)
    known: dict[str, int] = {}
    odd = 0
    for _ in range(_LOOKS):
        now = {each.name: each.inode() for each in os.scandir(path) if not skip(path / each.name)}
        for gone in [each for each in known if known[each] != now.get(each)]:
            archive.drop_entry(f"{name}/{gone}")
        fresh = [each for each in sorted(now) if known.get(each) != now[each]]
        if not fresh and len(known) == len(now):
            break
        for each in fresh:
            try:
                odd += _save_entry(archive, path / each, f"{name}/{each}", skip)
            except FileNotFoundError:
                archive.drop_entry(f"{name}/{each}")
        known = now
    return odd


def _save_entry(archive: ArchiveWriter, path: Path, name: str, skip: Callable[[Path], bool]) -> int:
    if len(os.fsencode(path)) >= _LONGEST_PATH:
        return 1
    mode = path.stat(follow_symlinks=False).st_mode
    if stat.S_ISDIR(mode):
        if name.count("/") >= MOST_LEVELS:
            return 1
        return save_folder(archive, path, name, skip)
    if not stat.S_ISREG(mode):
        return 1
    save_file(archive, path, name)
    return 0


def save_file(archive: ArchiveWriter, path: Path, name: str) -> None:
    """Add a file to an archive, even if other processes change the file meanwhile. Raises ``OSError``."""
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        facts = os.fstat(file.fileno())
        with tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY) as copy:
            while chunk := file.read(2**20):
                copy.write(chunk)
            size = copy.tell()
            copy.seek(0)
            archive.add_file(name, copy, size, mode=facts.st_mode, mtime_ns=facts.st_mtime_ns)
