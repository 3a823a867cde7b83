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
from worker.runners.sandbox import process_tags
from worker.runners.sandbox.agent_process import AgentExit, AgentProcess

log = structlog.get_logger(__name__)

#: Root of our packages, used as PYTHONPATH of guard and agents.
SOURCE_ROOT = str(Path(__file__).resolve().parents[3])
#: Command that starts Python fast, without site packages.
FAST_PYTHON = (sys.executable, "-S", "-P", "-m")

_SEND_SECONDS = 5
#: A guard waits this long for processes blocked in the kernel.
_STOP_SECONDS = 12


class AgentProcesses:
    """Starts and ends a worker's agents through a guard process, and replaces a dead guard."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._guard: _GuardConnection | None = None

    @property
    def guard_pid(self) -> int:
        """Return the id of the guard process, or 0 if none was started."""
        return self._guard.pid if self._guard else 0

    def start_guard(self) -> int:
        """Start the guard process if none is running, and return its process id."""
        return self._running_guard().pid

    def stop_guard(self) -> None:
        """Stop the guard process and all agents, and wait until they are gone."""
        with self._lock:
            guard, self._guard = self._guard, None
        if guard is not None:
            guard.close()

    def spawn_agent(
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
        """Start an agent process and return it. If that fails, the returned process ends with ``AgentExit.error``.

        Args:
            mark: the process tag, ``<turn>.<attempt>.<delivery>``.
            env: the complete environment; only the tag is added.
            stdin: the complete standard input; None: input comes from ``AgentProcess.write_input``.
            lease_ends: ``time.monotonic()`` at which the guard kills the agent, unless extended.
            open_files: limit of open files per process; 0 keeps the worker's.
            recorded: folder next to which the output is recorded, if possible.
            facts: JSON-ready values stored at the end of the recording.

        Raises:
            OSError: the machine is short of descriptors, memory or processes.
        """
        request: dict[str, Any] = {"do": "spawn", "mark": mark, "lease_ends": lease_ends, "open_files": open_files}
        request |= {"argv": list(argv), "env": {**env, process_tags.TAG_VARIABLE: mark}, "cwd": str(cwd)}
        recording = start_recording(recorded) if recorded else None
        request |= {"record": recording.path if recording else "", "facts": dict(facts or {})}
        with contextlib.ExitStack() as theirs, contextlib.ExitStack() as ours:
            if recording:
                ours.callback(recording.close)
            source, feed = (_memory_file(stdin), -1) if stdin is not None else _open_input(ours)
            theirs.callback(os.close, source)
            stdout, agent_stdout = _open_pipe(ours, theirs)
            stderr, agent_stderr = _open_pipe(ours, theirs)
            guard = self._running_guard()
            process = AgentProcess(mark, stdout, stderr, guard.send, guard.kill_guard, recording, feed)
            ours.pop_all()  # from here on the agent process closes them
            recorder = [recording.fd, stdout] if recording else []
            guard.spawn_agent(process, request, [source, agent_stdout, agent_stderr, *recorder])
            return process

    def end_agent(self, mark: str) -> None:
        """Kill the agent with the process tag ``mark``, if the agent is running, and wait until it has ended."""
        with self._lock:
            agent = self._guard.agent_of(mark) if self._guard else None
        if agent:
            agent.terminate_agent(0)
            agent.wait_for_end(_STOP_SECONDS)

    def _running_guard(self) -> _GuardConnection:
        with self._lock:
            if self._guard is None or self._guard.gone or self._guard.owner != os.getpid():
                self._guard = _GuardConnection()
            return self._guard


class _GuardConnection:
    def __init__(self) -> None:
        self.owner = os.getpid()
        self.gone = False
        self._lock = threading.Lock()
        self._send_lock = threading.Lock()
        self._agents: dict[str, AgentProcess] = {}
        self._sock, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [*FAST_PYTHON, "worker.runners.sandbox.guard", str(theirs.fileno()), str(self.owner)],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env={"PYTHONPATH": SOURCE_ROOT, "LANG": "C.UTF-8"},
                start_new_session=True,
                cwd="/",
            )
        self.pid = self._process.pid
        self._thread = threading.Thread(target=self._receive_reports, name="guard-reports", daemon=True)
        self._thread.start()

    def spawn_agent(self, process: AgentProcess, request: dict[str, Any], fds: list[int]) -> None:
        with self._lock:
            if self.gone:
                process.report_end(AgentExit(cause="guard died"))
                return
            if process.mark in self._agents:
                process.report_end(AgentExit(error=f"an agent with mark {process.mark} runs already"))
                return
            self._agents[process.mark] = process
        error = self.send(request, fds)
        if error:
            with self._lock:
                self._agents.pop(process.mark, None)
            process.report_end(AgentExit(error=error))

    def agent_of(self, mark: str) -> AgentProcess | None:
        with self._lock:
            return self._agents.get(mark)

    def send(self, request: dict[str, Any], fds: Sequence[int] = ()) -> str:
        """Send a request to the guard. Return an error message, or an empty string on success."""
        packet = json.dumps(request).encode()
        try:
            try:
                self._send_packet(packet, fds)
            except BlockingIOError:
                writable = select.poll()
                writable.register(self._sock, select.POLLOUT)
                writable.poll(_SEND_SECONDS * 1000)
                self._send_packet(packet, fds)
        except BlockingIOError:
            self.kill_guard()  # a guard that reads no orders cannot enforce leases: replace it
        except (BrokenPipeError, ConnectionResetError):
            return ""  # the guard died; the listener reports that to every agent's owner
        except OSError as error:
            return f"the guard cannot be reached: {error}"
        return ""

    def _send_packet(self, packet: bytes, fds: Sequence[int]) -> None:
        with self._send_lock:
            if self.gone:
                raise BrokenPipeError
            socket.send_fds(self._sock, [packet], list(fds), socket.MSG_DONTWAIT)

    def kill_guard(self) -> None:
        self._process.kill()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._thread.join(_STOP_SECONDS)
        if self._thread.is_alive():
            self.kill_guard()
            self._thread.join()

    def _receive_reports(self) -> None:
        while packet := self._receive_packet():
            report = json.loads(packet)
            mark = report.pop("mark")
            event = report.pop("event")
            if event in {"started", "ended", "mounted"}:
                with self._lock:
                    agent = self._agents.get(mark)
                    if agent and event == "started":
                        agent.pid = report["pid"]
                    elif agent and event == "mounted":
                        agent.report_mounts(report["error"])
                    elif agent:
                        agent.known_end = AgentExit(code=report["code"], cause=report["cause"], pid=agent.pid)
                continue
            if event == "exit":
                report["left"] = tuple(report["left"])
            with self._lock:
                process = self._agents.pop(mark, None)
            if process is not None:
                process.report_end(AgentExit(**report))
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
            left = process_tags.kill_tagged(process.mark)
            process.report_end(replace(process.known_end or AgentExit(cause="guard died"), left=left))

    def _receive_packet(self) -> bytes:
        try:
            return self._sock.recv(65_536)
        except OSError:
            return b""


def start_recording(folder: Path, head: bytes = b"") -> RunRecording | None:
    """Start a recording next to a folder and return it, or log the error and return None."""
    try:
        return RunRecording(folder, head)
    except OSError as error:
        log.info("run.not_recorded", folder=str(folder), error=str(error))
        return None


def _open_pipe(ours: contextlib.ExitStack, theirs: contextlib.ExitStack) -> tuple[int, int]:
    reader, writer = os.pipe()
    ours.callback(os.close, reader)
    theirs.callback(os.close, writer)
    return reader, writer


def _open_input(ours: contextlib.ExitStack) -> tuple[int, int]:
    reader, writer = os.pipe()
    ours.callback(os.close, writer)
    os.set_blocking(writer, False)
    return reader, writer


def _memory_file(content: bytes) -> int:
    fd = os.memfd_create("stdin", os.MFD_CLOEXEC)
    view = memoryview(content)
    while view:
        view = view[os.write(fd, view) :]
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


@functools.cache
def shared_processes() -> AgentProcesses:
    """Return the agent processes of this worker, which all runners share."""
    return AgentProcesses()
