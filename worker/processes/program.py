"""A program to run, and its life as a process: started tied to us, watched, ended with everything it started.

Nothing survives its parent: each process asks the kernel for a signal at its parent's death, and leads a process group
that is killed with it.
"""

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
#: Exit code of a process whose lock another process holds (EX_TEMPFAIL).
LOCKED = 75
#: Exit code of a program that an operator ended: its supervisor does not start it again.
STAYS_DOWN = 84
#: Exit code of a worker process that may not use this store (EX_CONFIG). Its supervisor says why, once for all of them.
REFUSED = 78
#: Set in the environment of what a supervisor starts.
SUPERVISED = "HELIX_AGENT_SUPERVISED"
#: Tells a process of a worker how many answers it judges at once.
CHECK_SLOTS_VARIABLE = "HELIX_AGENT_CHECK_SLOTS"

# A tiny launcher that becomes the program. It replaces subprocess's preexec_fn, which may deadlock beside threads.
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
    """The command to run, and how to see that it works.

    Attributes:
        name: how it is called in messages and in its log file.
        command: the command and its arguments, never a shell line. environ: its whole environment; None inherits ours.
        cwd: its working directory; None inherits ours.
        ready: asked with its process id every 0.02 s until it says True; must answer within a second.
        ready_file: removed before each start; the program is not ready before it exists again.
        stale_seconds: a program whose ready file was not touched for this long no longer works: it is ended and started
            again; 0: never.
        answers: asked every ``ask_seconds`` once it is ready, in a thread, and must come back within seconds; a program
            that did not answer ``misses`` times in a row is killed and started again. None: it is not asked.
        ready_seconds: a program not ready by then is killed. grace_seconds: time between SIGTERM and SIGKILL.
        death_signal: what the kernel sends it when its supervisor is gone.
        lock: file the program holds locked while it lives, so that it runs once only.
        worker: the name it has as a worker, in records, pages and logs; empty for other programs.
        alongside: it does not need the program before it: both start, and end, at the same time.
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
    ready_seconds: float = 180.0  # a busy machine starts a worker in more than 30 s
    grace_seconds: float = 5.0
    death_signal: signal.Signals = signal.SIGKILL
    lock: Path | None = None
    alongside: bool = False
    worker: str = ""


def spawn(program: Program, log_file: Path | None = None) -> subprocess.Popen[bytes]:
    """Start a program tied to the calling *thread*: the kernel ends it when that thread ends.

    Its output is appended to ``log_file``, or passed through.

    Raises:
        OSError: the log file or the working directory cannot be used.
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


def exited(process: subprocess.Popen[bytes]) -> bool:
    """True when the process ended. It is left unreaped, so that its group's id cannot be reused meanwhile."""
    if process.returncode is not None:
        return True
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def bury(process: subprocess.Popen[bytes]) -> int:
    """Kill the rest of the process's group and reap the process; returns its exit code."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    return process.wait()


def ask_to_end(process: subprocess.Popen[bytes]) -> None:
    """SIGTERM to the process, if it still runs."""
    if not exited(process):
        os.kill(process.pid, signal.SIGTERM)


def end(process: subprocess.Popen[bytes], grace_seconds: float, hurry: threading.Event | None = None) -> int:
    """SIGTERM to the process, then as ``await_end``."""
    ask_to_end(process)
    return await_end(process, time.monotonic() + grace_seconds, hurry)


def await_end(process: subprocess.Popen[bytes], until: float, hurry: threading.Event | None = None) -> int:
    """Wait for a process that was asked to end, then SIGKILL to its whole group; returns its exit code.

    It is killed at ``until`` (``time.monotonic()``), and at once when ``hurry`` is set.
    """
    hurry = hurry or threading.Event()
    while not exited(process) and time.monotonic() < until and not hurry.wait(_LOOK_SECONDS):
        pass
    return bury(process)
