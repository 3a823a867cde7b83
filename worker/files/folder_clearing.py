"""Clearing up sessions' folders: which are old enough, and removing them so that a kill half-way leaves only less.

Whether a session is at work only the store knows; it is asked again after a folder was put aside and before it goes.
"""

from __future__ import annotations

import os
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from api_client.contract.session_paths import session_directory
from worker.files import recording
from worker.files.session import read_status

#: A folder that was put aside to be removed. No session's folder begins with a dot.
GONE = ".gone-"


@dataclass(frozen=True, slots=True)
class Old:
    """A folder that is old enough to go. ``what`` is session, attempt or gone (what a killed clearing left)."""

    what: str
    path: Path
    session_id: str
    size: int


def old_folders(
    sessions_dir: Path, *, now: float, session_seconds: float, attempt_seconds: float, live: Callable[[str], bool]
) -> Iterator[Old]:
    """Folders not written to for this long: whole sessions and deliveries (0: never). None of a live session.

    A folder of an unknown session is left alone.
    """
    for path in folders_in(sessions_dir.resolve()):
        if path.name.startswith(GONE):
            yield Old("gone", path, "", size_of(path))
            continue
        session_id = session_id_of(path)
        if session_id is None or live(session_id):
            continue
        if session_seconds and now - last_written(path) > session_seconds:
            yield Old("session", path, session_id, size_of(path))
        elif attempt_seconds:
            for delivery in folders_in(path / "attempts"):
                if now - last_written(delivery) > attempt_seconds:
                    yield Old("attempt", delivery, session_id, size_of(delivery))


def remove(old: Old, live: Callable[[str], bool]) -> bool:
    """Remove a folder; False when its session came back to work meanwhile. Nothing outside it is touched.

    Raises:
        OSError: it cannot be removed; what is left is found again by the next clearing.
    """
    if old.what == "gone":
        shutil.rmtree(old.path)
        return True
    recording.forget(old.path)
    aside = (old.path.parent if old.what == "session" else old.path.parents[2]) / f"{GONE}{secrets.token_hex(6)}"
    old.path.rename(aside)
    # Unless the session has already begun a new one: then what was put aside was old enough to go.
    if live(old.session_id) and not old.path.exists():
        aside.rename(old.path)
        return False
    shutil.rmtree(aside)
    return True


def session_id_of(path: Path) -> str | None:
    """The session whose folder this is, by its status.json; None when it does not say."""
    session_id = read_status(path).get("session_id", path.name)
    right = isinstance(session_id, str) and session_directory(path.parent, session_id) == path
    return session_id if right else None


def last_written(path: Path) -> float:
    """When a folder, or what lies directly in it, was last written to, in seconds since the epoch."""
    times = [path.stat(follow_symlinks=False).st_mtime]
    with os.scandir(path) as entries:
        times += [entry.stat(follow_symlinks=False).st_mtime for entry in entries]
    return max(times)


def size_of(path: Path) -> int:
    """Bytes of the files below a folder; links are not followed."""
    total = 0
    for folder, _, files in os.walk(path):
        for name in files:
            try:
                facts = os.lstat(os.path.join(folder, name))  # noqa: PTH118 - thousands of them
            except OSError:
                continue
            total += facts.st_size if stat.S_ISREG(facts.st_mode) else 0
    return total


def folders_in(parent: Path) -> list[Path]:
    """The folders in a folder; links are not followed."""
    if parent.is_symlink() or not parent.is_dir():
        return []
    return sorted(path for path in parent.iterdir() if path.is_dir() and not path.is_symlink())
