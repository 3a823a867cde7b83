"""Starts the processes of an installation in order, keeps them running, and ends them all.

Nothing survives its supervisor: each child asks the kernel for a signal at its parent's death, and leads a process
group of its own that is killed with it.
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
from pathlib import Path
from types import FrameType
from typing import Self

import structlog

from api_client.contract.errors import HelixError

log = structlog.get_logger(__name__)

TICK_SECONDS = 0.05
FIRST_DELAY_SECONDS = 0.2
LAST_DELAY_SECONDS = 5.0
#: Exit code of a process whose lock another process holds (EX_TEMPFAIL).
LOCKED = 75

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


class NotReady(HelixError):
    """A process ended, or stayed silent, before it was ready for the first time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What to run, and how to tell that it works.

    Attributes:
        name: how it is called in messages and in its log file.
        command: the command and its arguments, never a shell line.
        environ: its whole environment; None inherits ours.
        cwd: its working directory; None inherits ours.
        ready: asked with its process id every 0.05 s until it says True; must answer within a second.
        ready_file: removed before each start; the program is not ready before it exists again.
        ready_seconds: a program not ready by then is killed.
        grace_seconds: time between SIGTERM and SIGKILL.
        death_signal: what the kernel sends it when its supervisor is gone.
        lock: file the program holds locked while it lives, so that it runs once only.
    """

    name: str
    command: Sequence[str]
    environ: Mapping[str, str] | None = None
    cwd: Path | None = None
    ready: Callable[[int], bool] = lambda pid: True
    ready_file: Path | None = None
    ready_seconds: float = 30.0
    grace_seconds: float = 5.0
    death_signal: signal.Signals = signal.SIGKILL
    lock: Path | None = None


def spawn(program: Program, log_file: Path | None = None) -> subprocess.Popen[bytes]:
    """Start a program tied to the calling *thread*: the kernel ends it when that thread ends.

    Its output is appended to ``log_file``, or passed through.

    Raises:
        OSError: the log file or the working directory cannot be used.
    """
    if program.ready_file:
        program.ready_file.unlink(missing_ok=True)
    with contextlib.ExitStack() as stack:
        output = stack.enter_context(log_file.open("ab")) if log_file else None
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
    """Kill what is left of the process's group and reap the process; returns its exit code."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    return process.wait()


def end(process: subprocess.Popen[bytes], grace_seconds: float, hurry: threading.Event | None = None) -> int:
    """SIGTERM to the process, then SIGKILL to its whole group; returns its exit code."""
    if not exited(process):
        os.kill(process.pid, signal.SIGTERM)
        until = time.monotonic() + grace_seconds
        hurry = hurry or threading.Event()
        while not exited(process) and time.monotonic() < until and not hurry.wait(TICK_SECONDS / 2):
            pass
    return bury(process)


class _Child:
    """A program and what became of it. Only the supervisor's thread changes it."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.process: subprocess.Popen[bytes] | None = None
        self.ready = False
        self.proven = False  # was ready once: from then on it is restarted, not given up
        self.started_at = 0.0
        self.start_at = 0.0
        self.delay = FIRST_DELAY_SECONDS


class Supervisor:
    """Runs programs. As a library: ``start``, ``kill``, ``wait_ready``, ``stop``; as a command: ``run``.

    One thread starts and watches all of them, because the kernel ties a child to the thread that started it.
    """

    def __init__(self, programs: Sequence[Program], *, logs: Path | None = None, stable_seconds: float = 10.0) -> None:
        self._children = {program.name: _Child(program) for program in programs}
        self._logs = logs
        self._stable_seconds = stable_seconds
        self._stopping = threading.Event()
        self._hurry = threading.Event()
        self._settled = threading.Event()  # all ready, or given up
        self._changed = threading.Condition()
        self._failure: Exception | None = None
        # A daemon: should the interpreter end without stop(), the kernel ends the children.
        self._thread = threading.Thread(target=self._watch, name="supervisor", daemon=True)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start every program in order, each after the one before it is ready.

        Raises:
            NotReady: one never got ready; the others are stopped again.
            OSError: one could not be started at all.
        """
        self._thread.start()
        self._settled.wait()
        if self._failure:
            self._thread.join()
            raise self._failure

    def stop(self) -> None:
        """End every program, last first."""
        self._stopping.set()
        self._thread.join()

    def run(self, on_ready: Callable[[], None] = lambda: None) -> None:
        """Start everything, and stop it at SIGINT, SIGTERM or SIGHUP; a second signal kills without grace.

        Raises:
            NotReady, OSError: as ``start``; OSError also when one could not be started again.
        """

        def on_signal(_number: int, _frame: FrameType | None) -> None:
            (self._hurry if self._stopping.is_set() else self._stopping).set()

        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        before = {number: signal.signal(number, on_signal) for number in numbers}
        try:
            self.start()
            if not self._stopping.is_set():
                on_ready()
            self._thread.join()
            if self._failure:
                raise self._failure
        finally:
            self.stop()
            for number, handler in before.items():
                signal.signal(number, handler)

    def pid(self, name: str) -> int:
        """The process id of a program, 0 while it does not run."""
        process = self._children[name].process
        return process.pid if process else 0

    def kill(self, name: str, number: signal.Signals = signal.SIGKILL) -> int:
        """Send a signal to a program's first process only; returns the id it had.

        Raises:
            ProcessLookupError: it does not run at the moment.
        """
        with self._changed:
            pid = self.pid(name)
            if not pid:
                raise ProcessLookupError(f"{name} does not run")
            os.kill(pid, number)
            return pid

    def wait_ready(self, name: str, *, after: int = 0, seconds: float = 30.0) -> int:
        """Wait until a program is ready, in another process than ``after``; returns its process id.

        Raises:
            TimeoutError: it is not ready in time.
        """
        child = self._children[name]
        with self._changed:
            if not self._changed.wait_for(lambda: child.ready and self.pid(name) != after, seconds):
                raise TimeoutError(f"{name} is not ready after {seconds:g} s")
            return self.pid(name)

    def _watch(self) -> None:
        try:
            while not self._stopping.wait(TICK_SECONDS):
                self._tick()
        except (NotReady, OSError) as error:
            self._failure = error
        finally:
            for child in reversed(self._children.values()):
                if child.process:
                    end(child.process, child.program.grace_seconds, self._hurry)
                    self._set(child, process=None, ready=False)
            self._settled.set()

    def _tick(self) -> None:
        for child in self._children.values():
            if child.process is None:
                if time.monotonic() >= child.start_at:
                    self._start(child)
            elif exited(child.process):
                self._exited(child)
            elif not child.ready:
                self._check_ready(child)
            if not child.proven:
                return  # those after it wait for it
        self._settled.set()

    def _start(self, child: _Child) -> None:
        name = child.program.name
        process = spawn(child.program, self._logs / f"{name}.log" if self._logs else None)
        child.started_at = time.monotonic()
        self._set(child, process=process, ready=False)
        log.debug("process.started", name=name, pid=process.pid)

    def _check_ready(self, child: _Child) -> None:
        program = child.program
        if (program.ready_file is None or program.ready_file.exists()) and program.ready(self.pid(program.name)):
            if child.proven:
                log.info("process.restarted", name=program.name, pid=self.pid(program.name))
            child.proven = True
            self._set(child, process=child.process, ready=True)
        elif time.monotonic() - child.started_at > program.ready_seconds:
            self.kill(program.name)
            if not child.proven:
                raise NotReady(f"{program.name} was not ready after {program.ready_seconds:g} s{self._tail(program)}")

    def _exited(self, child: _Child) -> None:
        assert child.process is not None  # noqa: S101 - a fact for the type checker
        name, pid = child.program.name, child.process.pid
        with self._changed:  # kill() must not signal an id that is free again
            code = bury(child.process)
            child.process, child.ready = None, False
            self._changed.notify_all()
        if not child.proven:
            raise NotReady(f"{name} ended at its start with exit code {code}{self._tail(child.program)}")
        now = time.monotonic()
        if now - child.started_at >= self._stable_seconds:
            child.delay = FIRST_DELAY_SECONDS
        child.start_at = now + child.delay
        log.warning("process.exited", name=name, pid=pid, exit_code=code, restart_seconds=child.delay)
        child.delay = min(child.delay * 2, LAST_DELAY_SECONDS)

    def _set(self, child: _Child, *, process: subprocess.Popen[bytes] | None, ready: bool) -> None:
        with self._changed:
            child.process, child.ready = process, ready
            self._changed.notify_all()

    def _tail(self, program: Program) -> str:
        if self._logs is None:
            return ""
        path = self._logs / f"{program.name}.log"
        lines = path.read_text(errors="replace").strip().splitlines()[-5:] if path.exists() else []
        return "".join(f"\n  {line}" for line in [f"its log, {path}:", *lines])
