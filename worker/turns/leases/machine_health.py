"""Health of the worker's machine: whether sessions can be written and processes started."""

from __future__ import annotations

import contextlib
import secrets
import shutil
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

#: Seconds between probes of a healthy machine. A sick machine is probed with each heartbeat.
_LOOK_SECONDS = 15.0
#: A disk that cannot store this many bytes counts as full.
_ROOM = 256 * 1024
_SPAWN_SECONDS = 10.0
#: A program that ends at once.
_PROGRAM = [found] if (found := shutil.which("true")) else [sys.executable, "-S", "-E", "-c", ""]
#: Up to this delivery of a turn, a machine error is blamed on the machine even if the probe succeeds.
_FORGIVEN = 4
#: Seconds without new turns after an out-of-memory kill, or after this number of externally killed agents in a row.
_STARVED_SECONDS, _KILLED_IN_A_ROW = 15.0, 3
#: The kernel's count of out-of-memory kills on the whole machine, including foreign processes.
_VMSTAT = Path("/proc/vmstat")


def find_obstacle(folder: Path) -> str:
    """Return why this machine cannot write sessions or start processes, or an empty string if it can."""
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
        subprocess.run(_PROGRAM, check=True, timeout=_SPAWN_SECONDS, env={})
    except (OSError, subprocess.SubprocessError) as error:
        return f"no process can be started: {getattr(error, 'strerror', None) or error}"
    return ""


def find_oom_counter(proc: Path = Path("/proc/self"), mounted: Path = Path("/sys/fs/cgroup")) -> Path:
    """Return the file that counts out-of-memory kills in this process's cgroup, or on the whole machine."""
    with contextlib.suppress(OSError):
        for line in (proc / "cgroup").read_text().splitlines():
            _, kinds, path = line.split(":", 2)
            file = "memory/{}/memory.oom_control" if kinds == "memory" else "{}/memory.events"
            if kinds in {"", "memory"}:
                # A container may see the host's path here.
                for found in (mounted / file.format(path.strip("/")), mounted / file.format(".")):
                    if read_oom_kills(found) is not None:
                        return found
    return _VMSTAT


def read_oom_kills(counter: Path) -> int | None:
    """Read the number of out-of-memory kills from a counter file. Return None if it has no number."""
    with contextlib.suppress(OSError, ValueError):
        facts = dict(line.split(None, 1) for line in counter.read_text().splitlines())
        return int(facts["oom_kill"]) if "oom_kill" in facts else None
    return None


class Host:
    """Judges the health of the worker's machine from probes and from the way agents end. Thread-safe."""

    def __init__(self, folder: Path, probe: Callable[[Path], str] = find_obstacle, counter: Path | None = None) -> None:
        self._folder = folder
        self._probe = probe
        self._counter = counter or find_oom_counter()
        self._kills = read_oom_kills(self._counter) or 0
        self._killed = 0
        self._starved, self._starved_at = "", float("-inf")
        self._lock = threading.Lock()
        self._looked = float("-inf")
        #: Why this machine takes no turns now; empty while the machine is healthy.
        self.sick = ""

    def probe_now(self) -> str:
        """Probe the machine now. Return the problem found, or an empty string. Blocks for some milliseconds."""
        with self._lock:
            found = self._probe(self._folder) or self._find_memory_pressure()
            self._looked = time.monotonic()
            if found and not self.sick:
                log.error("host.sick", host=socket.gethostname(), reason=found)
            elif self.sick and not found:
                log.warning("host.well", host=socket.gethostname(), was=self.sick)
            self.sick = found
        return found

    def probe_if_due(self) -> str:
        """Probe the machine if the last probe is too old. Return the current problem, or an empty string."""
        due = self.sick or time.monotonic() - self._looked >= _LOOK_SECONDS
        due = due or (self._counter != _VMSTAT and (read_oom_kills(self._counter) or 0) > self._kills)
        return self.probe_now() if due else self.sick

    def note_run_end(self, completion: Completion) -> bool:
        """Record how an agent run ended. Return True if an outside process killed the agent."""
        self._killed = self._killed + 1 if completion.killed_from_outside else 0
        return completion.killed_from_outside

    def _find_memory_pressure(self) -> str:
        kills, now = read_oom_kills(self._counter) or 0, time.monotonic()
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

    def is_to_blame(self, error: OSError, delivery: int) -> bool:
        """Probe the machine, and return True if the machine and not the turn caused the error.

        If the probe succeeds, an error of scarce resources (``SHORT_OF``) is blamed on the machine only during the
        turn's first deliveries.
        """
        return bool(self.probe_now()) or (error.errno in SHORT_OF and delivery <= _FORGIVEN)

    def reclassify_result(self, result: RunResult, delivery: int) -> RunResult:
        """Return the result of a run, with a host error changed to a temporary error if the machine is healthy."""
        completion = result.completion
        if completion.kind is not ErrorKind.HOST or self.probe_now() or delivery <= _FORGIVEN:
            return result
        return replace(result, completion=replace(completion, kind=ErrorKind.TRANSIENT))
