"""Starts programs as processes, watches them, and stops them with their children, which never outlive their parent."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

_LOOK_SECONDS = 0.025
#: Exit code of a process whose lock is held by another process (EX_TEMPFAIL).
LOCKED = 75
#: Exit code of a program that an operator stopped and that its supervisor must not restart.
STAYS_DOWN = 84
#: Exit code of a worker process that may not use the store (EX_CONFIG). Its supervisor logs the reason.
REFUSED = 78
#: Environment variable of processes under a supervisor.
SUPERVISED = "HELIX_AGENT_SUPERVISED"
CHECK_SLOTS_VARIABLE = "HELIX_AGENT_CHECK_SLOTS"

# A small launcher that becomes the program; unlike preexec_fn, it cannot deadlock with threads.
_TETHER = f"""\
import ctypes, fcntl, os, signal, sys
parent, number, lock, *command = sys.argv[1:]
ctypes.CDLL(None).prctl(1, int(number))  # PR_SET_PDEATHSIG
if os.getppid() != int(parent):
    sys.exit("the supervisor is gone")
if lock:
    handle = os.open(lock, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        print("another process holds " + lock, file=sys.stderr)
        sys.exit({LOCKED})
    os.set_inheritable(handle, True)  # held for as long as the program lives
for ignored in signal.SIGPIPE, signal.SIGXFSZ:  # by Python, and an ignored signal stays so over exec
    signal.signal(ignored, signal.SIG_DFL)
os.execvp(command[0], command)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A command that the supervisor runs, with the checks for its readiness and health.

    Attributes:
        environ: the whole environment; None inherits ours.
        ready: called with the process id every 0.02 s until it returns True; must return within a second.
        ready_file: removed before each start; the program is ready once the file exists again.
        stale_seconds: restart the program if its ready file was not touched for this long; 0 for never.
        answers: liveness probe, called every ``ask_seconds``; after ``misses`` failures in a row the program is
            restarted.
        death_signal: sent by the kernel when the supervisor is gone.
        lock: file that the program keeps locked, so that it runs only once.
        worker: the program's name as a worker; empty for other programs.
        alongside: start and stop together with the program before it.
    """

    name: str
    command: Sequence[str]
    environ: Mapping[str, str] | None = None
    cwd: Path | None = None
    ready: Callable[[int], bool] = lambda pid: True
    ready_file: Path | None = None
    stale_seconds: float = 0.0
    answers: Callable[[], bool] | None = None
    ask_seconds: float = 2.0
    misses: int = 5
    ready_seconds: float = 180.0  # a busy machine takes more than 30 s to start a worker
    grace_seconds: float = 5.0
    death_signal: signal.Signals = signal.SIGKILL
    lock: Path | None = None
    alongside: bool = False
    worker: str = ""


def spawn_program(program: Program, log_file: Path | None = None) -> subprocess.Popen[bytes]:
    """Start a program and return its process. The kernel ends the program when the calling *thread* ends.

    Output is appended to ``log_file``, or passed through.
    """
    if program.ready_file:
        program.ready_file.unlink(missing_ok=True)
    with contextlib.ExitStack() as stack:
        private = partial(os.open, mode=0o600)
        output = stack.enter_context(open(log_file, "ab", opener=private)) if log_file else None
        return subprocess.Popen(
            [
                *(sys.executable, "-I", "-S", "-c", _TETHER),
                *(str(os.getpid()), str(int(program.death_signal)), str(program.lock or "")),
                *program.command,
            ],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT if output else None,
            env=None if program.environ is None else dict(program.environ),
            cwd=program.cwd,
            start_new_session=True,
        )


def has_exited(process: subprocess.Popen[bytes]) -> bool:
    """Return True if the process has ended, without reaping it, so that its group id stays reserved."""
    if process.returncode is not None:
        return True
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def reap_process(process: subprocess.Popen[bytes]) -> int:
    """Kill the remaining processes of the group, reap the process and return its exit code."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    return process.wait()


def request_stop(process: subprocess.Popen[bytes]) -> None:
    """Send SIGTERM to the process if it is still running."""
    if not has_exited(process):
        os.kill(process.pid, signal.SIGTERM)


def stop_process(process: subprocess.Popen[bytes], grace_seconds: float) -> int:
    """Stop a process with SIGTERM, or with SIGKILL after the grace period, and return its exit code."""
    request_stop(process)
    return wait_or_kill(process, time.monotonic() + grace_seconds)


def wait_or_kill(process: subprocess.Popen[bytes], until: float, hurry: threading.Event | None = None) -> int:
    """Wait for a process that got SIGTERM, kill the rest of its group, and return the exit code.

    The kill comes at ``until`` (``time.monotonic()``), or when ``hurry`` is set.
    """
    hurry = hurry or threading.Event()
    while not has_exited(process) and time.monotonic() < until and not hurry.wait(_LOOK_SECONDS):
        pass
    return reap_process(process)
