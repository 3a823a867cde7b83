"""Scratch folders: where the verifier and gates' programs work on copies of an output.

Each is locked by the process that made it, and the kernel releases the lock when that process dies, however it
dies. So anybody who comes next on this machine, a worker that starts or another verification, sweeps what nobody
holds.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import structlog

from worker.files.safe_io import opened

log = structlog.get_logger()

PREFIX = "helix-verify-"


@contextlib.contextmanager
def scratch_folder(parent: Path | None = None) -> Iterator[Path]:
    """A fresh folder of this process, by default in the system's temporary directory; it goes afterwards."""
    place = parent or Path(tempfile.gettempdir())
    place.mkdir(parents=True, exist_ok=True)
    sweep(place)
    with contextlib.ExitStack() as held:
        fresh = _locked(place, held)
        while not fresh.exists():  # swept before we could lock it
            fresh = _locked(place, held)
        try:
            yield fresh
        finally:
            shutil.rmtree(fresh, ignore_errors=True)


def _locked(place: Path, held: contextlib.ExitStack) -> Path:
    fresh = Path(tempfile.mkdtemp(prefix=PREFIX, dir=place))
    with contextlib.suppress(FileNotFoundError):
        folder = held.enter_context(opened(fresh))
        fcntl.flock(folder, fcntl.LOCK_EX)
    return fresh


def sweep(place: Path | None = None) -> int:
    """Remove the scratch folders of processes that have died; returns how many. Those of other users are let alone."""
    swept = 0
    for path in (place or Path(tempfile.gettempdir())).glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError), opened(path) as folder:
            if os.fstat(folder).st_uid != os.geteuid():
                continue
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path)
            swept += 1
    if swept:
        log.info("verification.scratch_swept", folders=swept)
    return swept
