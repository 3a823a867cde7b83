"""Start agents through the guard process and receive its reports. Thread-safe."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import structlog

from worker.files.recording import RunRecording
from worker.runners.guard import marks
from worker.runners.guard.agent_process import AgentProcess, Exit

log = structlog.get_logger(__name__)

#: Root of our packages, used as PYTHONPATH of guard and agents.
SOURCE_ROOT = str(Path(__file__).resolve().parents[3])
#: Command that starts Python fast, without site packages.
FAST_PYTHON = (sys.executable, "-S", "-P", "-m")

_SEND_SECONDS = 5
#: A guard waits this long for processes blocked in the kernel.
_STOP_SECONDS = 12


class Processes:
    """The agents of this worker process and their guard, which is replaced if it dies."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._guard: _Guard | None = None

    def start(self) -> int:
        """Start the guard if none is running, and return its process id."""
        return self._running().pid

    def stop(self) -> None:
        """Stop the guard and every agent, and wait until they are gone."""
        with self._lock:
            guard, self._guard = self._guard, None
        if guard is not None:
            guard.close()

    def spawn(
        self,
        argv: Sequence[str],
        *,
        mark: str,
        env: Mapping[str, str],
        cwd: Path,
        stdin: bytes | None = b"",
        lease_ends: float,
        open_files: int = 0,
        recorded: Path | None = None,
        facts: Mapping[str, Any] | None = None,
    ) -> AgentProcess:
        """Start an agent process. If that fails, the process ends at once with ``Exit.error``.

        Args:
            argv: the command.
            mark: the process tag, ``<turn>.<attempt>.<delivery>``.
            env: the complete environment; only the tag is added.
            cwd: the working directory.
            stdin: the complete standard input; None: input comes from ``AgentProcess.write``.
            lease_ends: ``time.monotonic()`` at which the guard kills the agent, unless extended.
            open_files: limit of open files per process; 0 keeps the worker's.
            recorded: folder next to which the output is recorded, if possible.
            facts: JSON-ready values stored at the end of the recording.

        Raises:
            OSError: the machine is short of descriptors, memory or processes.
        """
        request: dict[str, Any] = {"do": "spawn", "mark": mark, "lease_ends": lease_ends, "open_files": open_files}
        request |= {"argv": list(argv), "env": {**env, marks.MARK: mark}, "cwd": str(cwd)}
        recording = recording_beside(recorded) if recorded else None
        request |= {"record": recording.path if recording else "", "facts": dict(facts or {})}
        with contextlib.ExitStack() as theirs, contextlib.ExitStack() as ours:
            if recording:
                ours.callback(recording.close)
            source, feed = (_file_of(stdin), -1) if stdin is not None else _feed(ours)
            theirs.callback(os.close, source)
            stdout, agent_stdout = _pipe(ours, theirs)
            stderr, agent_stderr = _pipe(ours, theirs)
            guard = self._running()
            process = AgentProcess(mark, stdout, stderr, guard.send, guard.kill, recording, feed)
            ours.pop_all()  # from here on the agent process closes them
            recorder = [recording.fd, stdout] if recording else []
            guard.spawn(process, request, [source, agent_stdout, agent_stderr, *recorder])
            return process

    def end(self, mark: str) -> None:
        """Kill the agent of a run whose runner is gone, and wait up to ``_STOP_SECONDS`` for its end."""
        with self._lock:
            agent = self._guard.agent_of(mark) if self._guard else None
        if agent:
            agent.terminate(0)
            agent.wait(_STOP_SECONDS)

    def _running(self) -> _Guard:
        with self._lock:
            if self._guard is None or self._guard.gone or self._guard.owner != os.getpid():
                self._guard = _Guard()
            return self._guard


class _Guard:
    def __init__(self) -> None:
        self.owner = os.getpid()
        self.gone = False
        self._lock = threading.Lock()
        self._send_lock = threading.Lock()
        self._agents: dict[str, AgentProcess] = {}
        self._sock, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [*FAST_PYTHON, "worker.runners.guard.guard", str(theirs.fileno()), str(self.owner)],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env={"PYTHONPATH": SOURCE_ROOT, "LANG": "C.UTF-8"},
                start_new_session=True,
                cwd="/",
            )
        self.pid = self._process.pid
        self._thread = threading.Thread(target=self._listen, name="guard-reports", daemon=True)
        self._thread.start()

    def spawn(self, process: AgentProcess, request: dict[str, Any], fds: list[int]) -> None:
        with self._lock:
            if self.gone:
                process.ended(Exit(cause="guard died"))
                return
            if process.mark in self._agents:
                process.ended(Exit(error=f"an agent with mark {process.mark} runs already"))
                return
            self._agents[process.mark] = process
        error = self.send(request, fds)
        if error:
            with self._lock:
                self._agents.pop(process.mark, None)
            process.ended(Exit(error=error))

    def agent_of(self, mark: str) -> AgentProcess | None:
        with self._lock:
            return self._agents.get(mark)

    def send(self, request: dict[str, Any], fds: Sequence[int] = ()) -> str:
        """Send one packet; return an error text, empty on success."""
        packet = json.dumps(request).encode()
        try:
            try:
                self._send(packet, fds)
            except BlockingIOError:
                writable = select.poll()
                writable.register(self._sock, select.POLLOUT)
                writable.poll(_SEND_SECONDS * 1000)
                self._send(packet, fds)
        except BlockingIOError:
            self.kill()  # a guard that reads no orders cannot enforce leases: replace it
        except (BrokenPipeError, ConnectionResetError):
            return ""  # the guard died; the listener reports that to every agent's owner
        except OSError as error:
            return f"the guard cannot be reached: {error}"
        return ""

    def _send(self, packet: bytes, fds: Sequence[int]) -> None:
        with self._send_lock:
            if self.gone:
                raise BrokenPipeError
            socket.send_fds(self._sock, [packet], list(fds), socket.MSG_DONTWAIT)

    def kill(self) -> None:
        self._process.kill()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._thread.join(_STOP_SECONDS)
        if self._thread.is_alive():
            self.kill()
            self._thread.join()

    def _listen(self) -> None:
        while packet := self._receive():
            report = json.loads(packet)
            mark = report.pop("mark")
            event = report.pop("event")
            if event in {"started", "ended"}:
                with self._lock:
                    agent = self._agents.get(mark)
                    if agent and event == "started":
                        agent.pid = report["pid"]
                    elif agent:
                        agent.known_end = Exit(code=report["code"], cause=report["cause"], pid=agent.pid)
                continue
            if event == "exit":
                report["left"] = tuple(report["left"])
            with self._lock:
                process = self._agents.pop(mark, None)
            if process is not None:
                process.ended(Exit(**report))
        self._process.wait()
        with self._lock, self._send_lock:
            self.gone = True
            orphans = list(self._agents.values())
            self._agents.clear()
            self._sock.close()
        if orphans:
            log.error("guard.died", pid=self.pid, exit_code=self._process.returncode, agents=len(orphans))
        for process in orphans:
            # The agent itself ended, or died with its guard (PR_SET_PDEATHSIG); its children may live.
            left = marks.sweep(process.mark)
            process.ended(replace(process.known_end or Exit(cause="guard died"), left=left))

    def _receive(self) -> bytes:
        try:
            return self._sock.recv(65_536)
        except OSError:
            return b""


def recording_beside(folder: Path, head: bytes = b"") -> RunRecording | None:
    """Start a recording next to a folder, or log why that is impossible."""
    try:
        return RunRecording(folder, head)
    except OSError as error:
        log.info("run.not_recorded", folder=str(folder), error=str(error))
        return None


def _pipe(ours: contextlib.ExitStack, theirs: contextlib.ExitStack) -> tuple[int, int]:
    reader, writer = os.pipe()
    ours.callback(os.close, reader)
    theirs.callback(os.close, writer)
    return reader, writer


def _feed(ours: contextlib.ExitStack) -> tuple[int, int]:
    reader, writer = os.pipe()
    ours.callback(os.close, writer)
    os.set_blocking(writer, False)
    return reader, writer


def _file_of(content: bytes) -> int:
    fd = os.memfd_create("stdin", os.MFD_CLOEXEC)
    view = memoryview(content)
    while view:
        view = view[os.write(fd, view) :]
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


@functools.cache
def shared() -> Processes:
    """Return the process table of this worker, shared by all runners."""
    return Processes()
