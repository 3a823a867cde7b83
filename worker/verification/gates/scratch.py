"""Temporary folders for copies of an output, locked while their process lives."""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import structlog

from worker.files.folder_trees import remove_tree
from worker.files.safe_io import open_folder

log = structlog.get_logger()

PREFIX = "helix-verify-"


@contextlib.contextmanager
def scratch_folder(parent: Path | None = None) -> Iterator[Path]:
    """Yield a new temporary folder, which is removed afterwards."""
    place = parent or Path(tempfile.gettempdir())
    place.mkdir(parents=True, exist_ok=True)
    sweep_scratch(place)
    with contextlib.ExitStack() as held:
        fresh = _create_locked(place, held)
        while not fresh.exists():  # another process removed the folder before it was locked
            fresh = _create_locked(place, held)
        try:
            yield fresh
        finally:
            remove_tree(fresh, ignore_errors=True)


def _create_locked(place: Path, held: contextlib.ExitStack) -> Path:
    fresh = Path(tempfile.mkdtemp(prefix=PREFIX, dir=place))
    with contextlib.suppress(FileNotFoundError):
        folder = held.enter_context(open_folder(fresh))
        fcntl.flock(folder, fcntl.LOCK_EX)
    return fresh


def sweep_scratch(place: Path | None = None) -> int:
    """Remove the temporary folders that dead processes of this user left behind, and return their number."""
    swept = 0
    for path in (place or Path(tempfile.gettempdir())).glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError), open_folder(path) as folder:
            if os.fstat(folder).st_uid != os.geteuid():
                continue
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            remove_tree(path)
            swept += 1
    if swept:
        log.info("verification.scratch_swept", folders=swept)
    return swept
