"""Whether this machine can carry out turns now: write a session's folder, start a process. A sick host hurts nobody.

Its worker gives back what it holds, takes no more, and says why, until a probe works (docs/reliability.md).
"""

from __future__ import annotations

import contextlib
import secrets
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import structlog

from worker.files.safe_io import SHORT_OF
from worker.runners.base import ErrorKind, RunResult

log = structlog.get_logger()

#: How often a machine that is well is probed, in seconds; one that is sick is probed with each heartbeat of the worker.
_LOOK_SECONDS = 15.0
#: A disk that does not take so many bytes is full.
_ROOM = 256 * 1024
_SPAWN_SECONDS = 10.0
#: An error of a machine on which the probe works all the same is forgiven up to this delivery of a turn.
_FORGIVEN = 4


def obstacle(folder: Path) -> str:
    """Why this machine cannot carry out turns: the folder of sessions takes no file, or no process starts; or empty."""
    name = folder / f".probe-{secrets.token_hex(6)}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            name.write_bytes(bytes(_ROOM))
        finally:
            with contextlib.suppress(OSError):
                name.unlink()
    except OSError as error:
        return f"{folder} cannot be written: {error.strerror or error}"
    try:
        subprocess.run([sys.executable, "-S", "-E", "-c", ""], check=True, timeout=_SPAWN_SECONDS, env={})
    except (OSError, subprocess.SubprocessError) as error:
        return f"no process can be started: {getattr(error, 'strerror', None) or error}"
    return ""


class Host:
    """The machine as a worker process sees it. Used by many threads at once."""

    def __init__(self, folder: Path, probe: Callable[[Path], str] = obstacle) -> None:
        self._folder = folder
        self._probe = probe
        self._lock = threading.Lock()
        self._looked = float("-inf")
        self._sick = ""

    @property
    def sick(self) -> str:
        """Why this machine carries out no turns now; empty while it is well. Does not block."""
        return self._sick

    def look(self) -> str:
        """Probe the machine now, and return ``sick``. Writes a file and starts a process: blocks for milliseconds."""
        with self._lock:
            found = self._probe(self._folder)
            self._looked = time.monotonic()
            if found and not self._sick:
                log.error("host.sick", host=socket.gethostname(), reason=found)
            elif self._sick and not found:
                log.warning("host.well", host=socket.gethostname(), was=self._sick)
            self._sick = found
        return found

    def watch(self) -> str:
        """Probe the machine if it is time to: called with each heartbeat of the worker. Returns ``sick``."""
        due = self._sick or time.monotonic() - self._looked >= _LOOK_SECONDS
        return self.look() if due else self._sick

    def blamed(self, error: OSError, delivery: int) -> bool:
        """Whether an error is the machine's fault, not the turn's. Probes, so that a sick machine is known as one.

        Where the probe works, an error of a machine that is short of something (``SHORT_OF``) is its fault in a
        turn's first deliveries only: a turn that meets it again and again must end.
        """
        return bool(self.look()) or (error.errno in SHORT_OF and delivery <= _FORGIVEN)

    def weighed(self, result: RunResult, delivery: int) -> RunResult:
        """A run's result; an error of the machine passes as any other where ``blamed`` would not blame it."""
        completion = result.completion
        if completion.kind is not ErrorKind.HOST or self.look() or delivery <= _FORGIVEN:
            return result
        return replace(result, completion=replace(completion, kind=ErrorKind.TRANSIENT))
