"""The health of this machine: can it write a session's folder and start a process? A sick host hurts nobody.

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

from api_client.contract.completion import Completion, ErrorKind
from worker.files.safe_io import SHORT_OF
from worker.runners.base import RunResult

log = structlog.get_logger()

#: How often a machine that is well is probed, in seconds; one that is sick is probed with each heartbeat of the worker.
_LOOK_SECONDS = 15.0
#: A disk that does not take this many bytes is full.
_ROOM = 256 * 1024
_SPAWN_SECONDS = 10.0
#: An error of a machine on which the probe works all the same is forgiven up to this delivery of a turn.
_FORGIVEN = 4
#: A machine whose kernel killed something for want of memory is left alone so long, in seconds; as is one on which so
#: many agents in a row were killed by nobody of us.
_STARVED_SECONDS, _KILLED_IN_A_ROW = 15.0, 3
#: The kernel's count of all processes that it killed for want of memory, those of others on this machine too.
_VMSTAT = Path("/proc/vmstat")


def obstacle(folder: Path) -> str:
    """Say why this machine cannot carry out turns: sessions take no file, or no process starts; or empty."""
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


def oom_counter(proc: Path = Path("/proc/self"), mounted: Path = Path("/sys/fs/cgroup")) -> Path:
    """The file in which the kernel counts what it killed for want of memory: of our cgroup, else of the machine."""
    with contextlib.suppress(OSError):
        for line in (proc / "cgroup").read_text().splitlines():
            _, kinds, path = line.split(":", 2)
            file = "memory/{}/memory.oom_control" if kinds == "memory" else "{}/memory.events"
            if kinds in {"", "memory"}:
                # In a container the path may be that of the host, and the mount the container's own group.
                for found in (mounted / file.format(path.strip("/")), mounted / file.format(".")):
                    if oom_kills(found) is not None:
                        return found
    return _VMSTAT


def oom_kills(counter: Path) -> int | None:
    """Return how many processes the kernel has killed so far for want of memory; None where it does not say."""
    with contextlib.suppress(OSError, ValueError):
        facts = dict(line.split(None, 1) for line in counter.read_text().splitlines())
        return int(facts["oom_kill"]) if "oom_kill" in facts else None
    return None


class Host:
    """The machine as a worker process sees it. Used by many threads at once."""

    def __init__(self, folder: Path, probe: Callable[[Path], str] = obstacle, counter: Path | None = None) -> None:
        self._folder = folder
        self._probe = probe
        self._counter = counter or oom_counter()
        self._kills = oom_kills(self._counter) or 0
        self._killed = 0
        self._starved, self._starved_at = "", float("-inf")
        self._lock = threading.Lock()
        self._looked = float("-inf")
        #: Why this machine carries out no turns now; empty while it is well.
        self.sick = ""

    def look(self) -> str:
        """Probe the machine now, and return ``sick``. Writes a file and starts a process: blocks for milliseconds."""
        with self._lock:
            found = self._probe(self._folder) or self._starves()
            self._looked = time.monotonic()
            if found and not self.sick:
                log.error("host.sick", host=socket.gethostname(), reason=found)
            elif self.sick and not found:
                log.warning("host.well", host=socket.gethostname(), was=self.sick)
            self.sick = found
        return found

    def watch(self) -> str:
        """Probe the machine if it is time to: called with each heartbeat of the worker. Returns ``sick``."""
        due = self.sick or time.monotonic() - self._looked >= _LOOK_SECONDS
        due = due or (self._counter != _VMSTAT and (oom_kills(self._counter) or 0) > self._kills)
        return self.look() if due else self.sick

    def heard(self, completion: Completion) -> bool:
        """An agent's run has ended. True: others killed it, so the machine is to be looked at. Does not block."""
        self._killed = self._killed + 1 if completion.lost else 0
        return completion.lost

    def _starves(self) -> str:
        """Say why agents are killed here, or empty. The whole machine's count matters only where one was killed."""
        kills, now = oom_kills(self._counter) or 0, time.monotonic()
        if kills > self._kills and (self._killed or self._counter != _VMSTAT):
            self._starved, self._starved_at = "its kernel kills processes for want of memory", now
        elif self._killed >= _KILLED_IN_A_ROW:
            self._starved, self._starved_at = (
                f"{self._killed} agents in a row were killed, and not by their worker",
                now,
            )
            self._killed = 0
        self._kills = kills
        return self._starved if now - self._starved_at < _STARVED_SECONDS else ""

    def blamed(self, error: OSError, delivery: int) -> bool:
        """True if an error is the machine's fault, not the turn's. Probes, so that a sick machine is known as one.

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
