"""Finds and removes old session folders. A crash in between only leaves fewer files."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from api_client.contract.session_paths import HASHED, session_directory
from worker.files import recording
from worker.files.folder_trees import move_entry, remove_tree, walk_tree
from worker.files.safe_io import open_folder
from worker.files.session import read_status

#: Prefix of folders that were renamed for deletion. No session folder starts with a dot.
GONE = ".gone-"


@dataclass(frozen=True, slots=True)
class OldFolder:
    """A folder that is old enough to be deleted, with the session that it belongs to.

    ``what`` is "session", "attempt", or "gone" for the rest of an interrupted deletion.
    """

    what: str
    path: Path
    session_id: str
    size: int


def find_old_folders(
    sessions_dir: Path, *, now: float, session_seconds: float, attempt_seconds: float, live: Callable[[str], bool]
) -> Iterator[OldFolder]:
    """Yield session and attempt folders that have not been written to for the given times.

    Skips live sessions and folders whose session is unknown.
    """
    for path in list_folders(sessions_dir.resolve()):
        if path.name.startswith(GONE):
            yield OldFolder("gone", path, "", measure_size(path))
            continue
        session_id = find_session_id(path)
        if session_id is None or live(session_id):
            continue
        if session_seconds and now - find_last_change(path) > session_seconds:
            yield OldFolder("session", path, session_id, measure_size(path))
        elif attempt_seconds:
            for delivery in list_folders(path / "attempts"):
                if now - find_last_change(delivery) > attempt_seconds:
                    yield OldFolder("attempt", delivery, session_id, measure_size(delivery))


def remove_folder(old: OldFolder, live: Callable[[str], bool]) -> bool:
    """Delete an old folder. If its session has become active again, keep the folder and return False."""
    if old.what == "gone":
        remove_tree(old.path)
        return True
    recording.delete_recording(old.path)
    aside = (old.path.parent if old.what == "session" else old.path.parents[2]) / f"{GONE}{secrets.token_hex(6)}"
    with open_folder(old.path.parent) as source, open_folder(aside.parent) as target:
        move_entry(old.path.name, source, target, aside.name)
    if live(old.session_id) and not old.path.exists():
        aside.rename(old.path)
        return False
    remove_tree(aside)
    return True


def find_session_id(path: Path) -> str | None:
    """Return the session id in a folder's status.json, or None if it does not match the folder.

    Without a readable file the folder is named after its session, unless the name is that of a hashed id.
    """
    session_id = read_status(path).get("session_id", "" if path.name.startswith(HASHED) else path.name)
    right = isinstance(session_id, str) and session_directory(path.parent, session_id) == path
    return session_id if right else None


def find_last_change(path: Path) -> float:
    """Return when a folder or one of its direct entries was last changed, in seconds since the epoch.

    An agent may have closed the folder to its owner; then only the folder itself counts.
    """
    times = [path.stat(follow_symlinks=False).st_mtime]
    with contextlib.suppress(PermissionError), os.scandir(path) as entries:
        times += [entry.stat(follow_symlinks=False).st_mtime for entry in entries]
    return max(times)


def measure_size(path: Path) -> int:
    """Return the total size in bytes of the regular files that ``walk_tree`` finds, without following links."""
    total = 0
    for folder, _, files in walk_tree(path):
        for name in files:
            try:
                facts = os.lstat(os.path.join(folder, name))  # noqa: PTH118 - thousands of them
            except OSError:
                continue
            total += facts.st_size if stat.S_ISREG(facts.st_mode) else 0
    return total


def list_folders(parent: Path) -> list[Path]:
    """Return the subfolders of a folder in alphabetical order, without symbolic links; none of a closed folder."""
    try:
        if parent.is_symlink() or not parent.is_dir():
            return []
        return sorted(path for path in parent.iterdir() if path.is_dir() and not path.is_symlink())
    except PermissionError:
        return []
