"""A supervisor that starts an installation's processes in order, restarts them, and stops them together."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Self

import structlog

from api_client.contract.errors import HelixError
from worker.processes.liveness import LivenessProbe
from worker.processes.program import (
    STAYS_DOWN,
    Program,
    has_exited,
    reap_process,
    request_stop,
    spawn_program,
    wait_or_kill,
)

log = structlog.get_logger(__name__)

#: Seconds between two checks: during the start, while a program is not ready, and while all programs work.
_START_TICK_SECONDS, _TICK_SECONDS, _QUIET_SECONDS = 0.02, 0.05, 0.5
FIRST_DELAY_SECONDS = 0.2
LAST_DELAY_SECONDS = 5.0
SHOW_SECONDS = 5.0


class NotReady(HelixError):
    """Raised when a program ends or times out before becoming ready for the first time."""

    code = "process_not_ready"


class _SupervisedProgram:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.process: subprocess.Popen[bytes] | None = None
        self.ready = False
        self.proven = False  # was ready once, so it is restarted after an exit
        self.started_at = 0.0
        self.start_at = 0.0
        self.mark, self.marked_at = 0, 0.0  # time of the ready file, and when we saw it change
        self.kill_at = 0.0  # when to kill a program that no longer works; 0: not
        self.liveness: LivenessProbe | None = None  # set while it is ready and has a probe
        self.delay = FIRST_DELAY_SECONDS
        self.stays_down = False  # an operator stopped it

    def start_probe(self) -> None:
        if self.program.answers:
            self.liveness = LivenessProbe(self.program.answers, self.program.ask_seconds, self.program.misses)

    def stop_probe(self) -> None:
        if self.liveness:
            self.liveness.stop()
        self.liveness = None


class Supervisor:
    """Runs programs together, and restarts a program that exits or hangs.

    As a library: ``start``, ``kill``, ``stop``; as a command: ``run``. One thread starts all programs,
    because the kernel ties a child to its thread. The callbacks ``show`` (every few seconds) and ``on_exit`` must not
    block.
    """

    def __init__(
        self,
        programs: Sequence[Program],
        *,
        logs: Path | None = None,
        stable_seconds: float = 10.0,
        show: Callable[[], None] = lambda: None,
        show_seconds: float = SHOW_SECONDS,
        on_exit: Callable[[Program, int, int], None] = lambda program, pid, code: None,
    ) -> None:
        self._children = {program.name: _SupervisedProgram(program) for program in programs}
        self._logs = logs
        self._stable_seconds = stable_seconds
        self._stopping = threading.Event()
        self._hurry = threading.Event()
        self._look = threading.Event()  # set to check the programs at once
        self._settled = threading.Event()  # all programs are ready, or the start failed
        self._changing = threading.Lock()  # a process id is not reused while it is held
        self._failure: Exception | None = None
        self._show, self._show_seconds, self._shown_at = show, show_seconds, -math.inf
        self._ticked_at = math.inf
        self._on_exit = on_exit
        # A daemon: if the interpreter ends without stop(), the kernel ends the children.
        self._thread = threading.Thread(target=self._watch_programs, name="supervisor", daemon=True)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:  # such as a signal during the wait
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self, meanwhile: Callable[[threading.Event], None] = lambda stops: None) -> None:
        """Start all programs in order and wait until they are ready.

        A program starts once the programs before it are ready, unless its ``alongside`` is set. ``meanwhile`` is called
        during the start and returns once its event is set. Raises ``OSError``, or ``NotReady`` if a program never
        became ready; all others are then stopped.
        """
        self._thread.start()
        meanwhile(self._stopping)
        self._settled.wait()
        if self._failure:
            self._thread.join()
            raise self._failure

    def stop(self) -> None:
        """Stop all programs, in the reverse order of their start."""
        self._stopping.set()
        self._look.set()
        with contextlib.suppress(RuntimeError):  # a signal interrupted its start: it will find that it is to stop
            self._thread.join()

    def run(
        self,
        on_ready: Callable[[], None] = lambda: None,
        on_stop: Callable[[], None] = lambda: None,
        *,
        meanwhile: Callable[[threading.Event], None] = lambda stops: None,
    ) -> None:
        """Start all programs and stop them at SIGINT, SIGTERM or SIGHUP; a second signal kills them at once.

        ``on_stop`` is called at the first signal, while the programs end. Raises as ``start``.
        """

        def on_signal(_number: int, _frame: FrameType | None) -> None:
            (self._hurry if self._stopping.is_set() else self._stopping).set()
            self._look.set()

        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        before = {number: signal.signal(number, on_signal) for number in numbers}
        try:
            self.start(meanwhile)
            if not self._stopping.is_set():
                on_ready()
            self._stopping.wait()
            if not self._failure:
                on_stop()
            self._thread.join()
            if self._failure:
                raise self._failure
        finally:
            self.stop()
            for number, handler in before.items():
                signal.signal(number, handler)

    def pid(self, name: str) -> int:
        """Return the process id of the program with this name, or 0 if the program is not running."""
        process = self._children[name].process
        return process.pid if process else 0

    def kill(self, name: str, number: signal.Signals = signal.SIGKILL) -> int:
        """Send a signal to a program's main process, and return the id of that process.

        Raises ``ProcessLookupError`` if the program does not run.
        """
        with self._changing:
            pid = self.pid(name)
            if not pid:
                raise ProcessLookupError(f"{name} does not run")
            os.kill(pid, number)
            return pid

    def _watch_programs(self) -> None:
        try:
            while not self._stopping.is_set():
                self._look.clear()
                self._check_programs()
                if not self._stopping.is_set():
                    quiet = _QUIET_SECONDS if self._all_work else _TICK_SECONDS
                    self._look.wait(quiet if self._settled.is_set() else _START_TICK_SECONDS)
        except (NotReady, OSError) as error:
            self._failure = error
        finally:
            self._stopping.set()
            for group in reversed(self._group_programs()):
                self._stop_group(group)
            self._settled.set()

    def _group_programs(self) -> list[list[_SupervisedProgram]]:
        groups: list[list[_SupervisedProgram]] = []
        for child in self._children.values():
            if groups and child.program.alongside:
                groups[-1].append(child)
            else:
                groups.append([child])
        return groups

    def _stop_group(self, group: list[_SupervisedProgram]) -> None:
        for child in group:
            child.stop_probe()
            if child.process:
                request_stop(child.process)
        asked_at = time.monotonic()
        for child in group:
            if child.process:
                wait_or_kill(child.process, asked_at + child.program.grace_seconds, self._hurry)
                self._set_state(child, process=None, ready=False)

    def _check_programs(self) -> None:
        now = time.monotonic()
        if (late := now - self._ticked_at) > SHOW_SECONDS:  # the machine was frozen: nobody could touch a ready file
            for child in self._children.values():
                child.started_at, child.marked_at = child.started_at + late, child.marked_at + late
        self._ticked_at = now
        for group in self._group_programs():
            for child in group:
                self._check_program(child)
            if not all(child.proven for child in group):
                return  # later groups wait
        self._settled.set()
        now = time.monotonic()
        if now - self._shown_at >= self._show_seconds and self._all_work:
            self._shown_at = now
            self._show()

    @property
    def _all_work(self) -> bool:
        return all(child.stays_down or (child.ready and not child.kill_at) for child in self._children.values())

    def _check_program(self, child: _SupervisedProgram) -> None:
        if child.process is None:
            if time.monotonic() >= child.start_at:
                self._start_program(child)
        elif has_exited(child.process):
            self._handle_exit(child)
        elif not child.ready:
            self._check_ready(child)
        else:
            self._check_works(child)

    def _start_program(self, child: _SupervisedProgram) -> None:
        name = child.program.name
        process = spawn_program(child.program, self._logs / f"{name}.log" if self._logs else None)
        child.started_at = child.marked_at = time.monotonic()
        child.kill_at, child.mark = 0.0, 0
        self._set_state(child, process=process, ready=False)
        threading.Thread(target=self._wait_for_exit, args=(process.pid,), name="await-end", daemon=True).start()
        log.debug("process.started", name=name, pid=process.pid)

    def _wait_for_exit(self, pid: int) -> None:
        with contextlib.suppress(ChildProcessError):  # already reaped
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        self._look.set()

    def _check_ready(self, child: _SupervisedProgram) -> None:
        program = child.program
        if (program.ready_file is None or program.ready_file.exists()) and program.ready(self.pid(program.name)):
            if child.proven:
                log.info("process.restarted", name=program.name, pid=self.pid(program.name))
            child.proven = True
            child.start_probe()
            self._set_state(child, process=child.process, ready=True)
        elif self._ticked_at - child.started_at > program.ready_seconds:
            self.kill(program.name)
            if not child.proven:
                raise NotReady(
                    f"{program.name} was not ready after {program.ready_seconds:g} s{self._log_tail(program)}"
                )

    def _check_works(self, child: _SupervisedProgram) -> None:
        program, now = child.program, self._ticked_at
        if child.kill_at:
            if now >= child.kill_at:
                self.kill(program.name)
            return
        if child.liveness and child.liveness.lost:
            log.error("process.unanswering", name=program.name, pid=self.pid(program.name), misses=program.misses)
            child.kill_at = now  # without grace: a stalled program ignores signals too
            self.kill(program.name)
            return
        if not (program.stale_seconds and program.ready_file):
            return
        if (mark := _read_mtime(program.ready_file)) != child.mark:
            child.mark, child.marked_at = mark, now
        if not mark or now - child.marked_at > program.stale_seconds:
            log.error("process.stale", name=program.name, pid=self.pid(program.name), seconds=program.stale_seconds)
            child.kill_at = now + program.grace_seconds
            self.kill(program.name, signal.SIGTERM)

    def _handle_exit(self, child: _SupervisedProgram) -> None:
        assert child.process is not None  # noqa: S101 - a fact for the type checker
        child.stop_probe()
        name, pid = child.program.name, child.process.pid
        with self._changing:  # kill() must not signal a reused process id
            code = reap_process(child.process)
            child.process, child.ready = None, False
        if not child.proven:
            raise NotReady(f"{name} ended at its start with exit code {code}{self._log_tail(child.program)}")
        self._on_exit(child.program, pid, code)
        if code == STAYS_DOWN:
            log.warning("process.stays_down", name=name, pid=pid)
            child.stays_down, child.start_at = True, math.inf
            if all(each.stays_down for each in self._children.values()):
                self._stopping.set()
            return
        now = time.monotonic()
        if now - child.started_at >= self._stable_seconds:
            child.delay = FIRST_DELAY_SECONDS
        child.start_at = now + child.delay
        log.warning("process.exited", name=name, pid=pid, exit_code=code, restart_seconds=child.delay)
        child.delay = min(child.delay * 2, LAST_DELAY_SECONDS)

    def _set_state(self, child: _SupervisedProgram, *, process: subprocess.Popen[bytes] | None, ready: bool) -> None:
        with self._changing:
            child.process, child.ready = process, ready

    def _log_tail(self, program: Program) -> str:
        if self._logs is None:
            return ""
        path = self._logs / f"{program.name}.log"
        lines = path.read_text(errors="replace").strip().splitlines()[-5:] if path.exists() else []
        return "".join(f"\n  {line}" for line in [f"its log, {path}:", *lines])


def _read_mtime(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0
