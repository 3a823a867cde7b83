"""The guard: one small process per worker that starts agents and kills agents whose worker cannot.

Run as ``python -m worker.runners.sandbox.guard FD PID``, with one end of a SOCK_SEQPACKET pair and the worker's process
id. A separate process is needed because PR_SET_PDEATHSIG fires when the spawning *thread* ends, and because a frozen or
killed worker cannot stop its agents. When a lease ends, the guard first suspends the agent, because a frozen worker may
ask the store and resume the turn.

Each message is one JSON object in one packet. Requests: ``spawn`` and ``record`` (with descriptors), ``extend``,
``terminate``, ``mount``, ``unrecorded``. Reports: ``started``; ``mounted``; ``ended`` when the first process has ended;
finally ``exit`` or ``failed`` when no process is left.
"""

from __future__ import annotations

import collections
import contextlib
import ctypes
import errno
import functools
import json
import math
import os
import resource
import selectors
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from typing import Any

from worker.files.recording import GuardRecording
from worker.runners.sandbox import late_mounts, process_tags

MAX_REQUEST = 1 << 20

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_SWEEP_PAUSE = 0.005
#: Temporary errors of a machine short of resources.
_PASSING = {errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE}
#: An agent whose lease has ended is suspended for ``DOUBT_SECONDS`` if the machine was frozen (``_LATE``), otherwise
#: for ``_ON_TIME_SECONDS``.
DOUBT_SECONDS, _ON_TIME_SECONDS, _LATE, _DOUBT_LOOK = 5.0, 0.5, 0.3, 0.2
#: Seconds after SIGKILL at which a process is reported as blocked in the kernel.
_GIVE_UP = 10.0
#: Seconds after which a process that mounts files into a sandbox is killed.
_TO_MOUNT = 5


@dataclass(slots=True)
class _GuardedAgent:
    mark: str
    process: subprocess.Popen[bytes]
    lease_ends: float
    kill_at: float = math.inf
    give_up_at: float = math.inf
    cause: str = ""
    held: list[int] = field(default_factory=list)
    hold_for: float = 0.0
    seen: set[int] = field(default_factory=set)
    kept: GuardRecording | None = None
    noted: bool = False
    by_message: bool = False  # each message has a recording, so any end is noted
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def is_running(self) -> bool:
        return self.process.returncode is None


class Guard:
    """Starts, suspends and kills the agents of one worker, even if the worker itself hangs or dies."""

    def __init__(self, sock: socket.socket, worker_pid: int) -> None:
        self._sock = sock
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self._pid = os.getpid()
        self._agents: dict[str, _GuardedAgent] = {}
        self._given_up: set[int] = set()
        self._mounting: dict[int, str] = {}
        self._outbox: collections.deque[bytes] = collections.deque()
        self._worker_lives = True
        self._selector = selectors.DefaultSelector()
        self._selector.register(sock, selectors.EVENT_READ, self._receive_request)
        self._listen_for_children()
        # A pidfd reports the worker's death even if a forked child keeps the worker's socket open.
        with contextlib.suppress(OSError):  # kernels without pidfd: rely on the closed socket
            self._selector.register(os.pidfd_open(worker_pid), selectors.EVENT_READ, self._handle_worker_death)
        if os.getppid() != worker_pid:
            self._handle_worker_death()

    def run(self) -> None:
        """Handle the worker's requests until the worker is gone and all agents have ended."""
        while self._worker_lives or self._agents:
            for key, _ in self._selector.select(self._seconds_until_due()):
                key.data()
            self._reap_children()
            self._check_agents()
            self._send_reports()

    def _listen_for_children(self) -> None:
        reader, writer = socket.socketpair()
        for end in (reader, writer):
            end.setblocking(False)
        signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        # Handlers, not SIG_IGN: agents would inherit ignored signals. Only the worker may stop the guard.
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda *_: None)
        self._wakeup = writer
        self._selector.register(reader, selectors.EVENT_READ, lambda: reader.recv(4096))

    def _handle_worker_death(self) -> None:
        self._reap_children()  # an agent that has exited by itself counts as finished, even if its worker is dead
        self._worker_lives = False
        for key in list(self._selector.get_map().values()):
            if key.fileobj is self._sock or isinstance(key.fileobj, int):
                self._selector.unregister(key.fileobj)
        for agent in self._agents.values():
            if agent.is_running:
                self._kill_agent(agent, "worker died")

    def _receive_request(self) -> None:
        try:
            packet, fds, _, _ = socket.recv_fds(self._sock, MAX_REQUEST, 5, socket.MSG_CMSG_CLOEXEC)
        except ConnectionResetError:
            packet, fds = b"", []
        if not packet:
            self._handle_worker_death()
            return
        request = json.loads(packet)
        match request.pop("do"):
            case "spawn":
                self._spawn_agent(request, fds)
            case "extend" if agent := self._agents.get(request["mark"]):
                self._extend_lease(agent, request["lease_ends"])
            case "terminate" if agent := self._agents.get(request["mark"]):
                self._terminate_agent(agent, request["grace"])
            case "mount":
                self._add_mounts(request["mark"], request["mounts"])
            case "record":
                self._set_recording(self._agents.get(request["mark"]), request["record"], fds)
            case "unrecorded" if agent := self._agents.get(request["mark"]):
                if agent.kept and agent.kept.path == request["record"]:
                    self._drop_recording(agent)

    def _spawn_agent(self, request: dict[str, Any], fds: list[int]) -> None:
        mark = request["mark"]
        try:
            if mark in self._agents:
                raise ValueError(f"an agent with mark {mark} runs already")
            if len(fds) != (5 if request["record"] else 3):  # the kernel drops descriptors beyond our limit
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            stdin, stdout, stderr, *recording = fds
            process = subprocess.Popen(
                request["argv"],
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                env=request["env"],
                cwd=request["cwd"],
                start_new_session=True,
                # Safe: this process has one thread.
                preexec_fn=functools.partial(self._prepare_child, request["open_files"]),
            )
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            passing = getattr(error, "errno", None) in _PASSING
            self._queue_report(mark, event="failed", error=f"{type(error).__name__}: {error}", passing=passing)
        else:
            agent = self._agents[mark] = _GuardedAgent(mark, process, request["lease_ends"], facts=request["facts"])
            if recording:
                agent.kept = GuardRecording(request["record"], *recording)
                fds = fds[:3]
            self._queue_report(mark, event="started", pid=process.pid)
        finally:
            for fd in fds:
                os.close(fd)

    def _add_mounts(self, mark: str, mounts: list[tuple[str, bool]]) -> None:
        agent = self._agents.get(mark)
        if agent is None or not agent.is_running:
            self._queue_report(mark, event="mounted", error=os.strerror(errno.ESRCH))
        elif child := os.fork():
            self._mounting[child] = mark
        else:
            code = errno.EIO
            try:
                self._libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
                signal.alarm(_TO_MOUNT)
                if os.getppid() == self._pid:
                    late_mounts.add_mounts(agent.process.pid, mounts)
                    code = 0
            except OSError as error:
                code = error.errno or code
            finally:
                os._exit(code)

    def _set_recording(self, agent: _GuardedAgent | None, path: str, fds: list[int]) -> None:
        if agent is None or len(fds) != 2:
            for fd in fds:
                os.close(fd)
            return
        if agent.kept:
            agent.kept.close(keep=True)
        agent.kept, agent.noted, agent.by_message = GuardRecording(path, *fds), False, True

    def _prepare_child(self, open_files: int) -> None:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if open_files and (hard == resource.RLIM_INFINITY or open_files < hard):
            resource.setrlimit(resource.RLIMIT_NOFILE, (open_files, open_files))
        self._libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != self._pid:  # the guard died before prctl took effect
            os._exit(1)

    def _terminate_agent(self, agent: _GuardedAgent, grace: float) -> None:
        self._reap_children()  # do not blame this order for an agent that has already exited
        if not agent.is_running:
            return
        if grace <= 0:
            self._kill_agent(agent, "terminated")
            return
        agent.cause = agent.cause or "terminated"
        agent.kill_at = min(agent.kill_at, time.monotonic() + grace)
        _signal_group(agent.process.pid, signal.SIGTERM)

    def _extend_lease(self, agent: _GuardedAgent, lease_ends: float) -> None:
        agent.lease_ends = lease_ends
        if agent.held and lease_ends > time.monotonic():
            while agent.held:  # children before their parents
                process_tags.send_signal(agent.held.pop(), signal.SIGCONT)
            _signal_group(agent.process.pid, signal.SIGCONT)

    def _suspend_agent(self, agent: _GuardedAgent, now: float) -> None:
        late = now - agent.lease_ends
        if agent.held:
            agent.hold_for -= _DOUBT_LOOK + min(late, _DOUBT_LOOK)
        else:
            agent.hold_for = DOUBT_SECONDS if late > _LATE else _ON_TIME_SECONDS
        agent.lease_ends = now + _DOUBT_LOOK
        if agent.cause or agent.hold_for <= 0:
            self._kill_agent(agent, "lease ended")
        else:
            stopped = [
                pid for pid in process_tags.suspend_agent(agent.process.pid, agent.mark) if pid not in agent.held
            ]
            for pid in self._mounting.keys() & set(stopped):  # a child of the guard, not of the agent
                process_tags.send_signal(pid, signal.SIGCONT)
            agent.held += [pid for pid in stopped if pid not in self._mounting]
            agent.held = agent.held or [agent.process.pid]

    def _kill_agent(self, agent: _GuardedAgent, cause: str) -> None:
        agent.cause = agent.cause or cause
        agent.kill_at = agent.lease_ends = math.inf
        agent.give_up_at = min(agent.give_up_at, time.monotonic() + _GIVE_UP)
        if agent.is_running:
            _signal_group(agent.process.pid, signal.SIGKILL)

    def _reap_children(self) -> None:
        by_pid = {agent.process.pid: agent for agent in self._agents.values() if agent.is_running}
        while True:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if ended is None:
                return
            agent = by_pid.get(ended.si_pid)
            if agent:
                # Before waitpid: the zombie keeps its group id from being reused.
                _signal_group(ended.si_pid, signal.SIGKILL)
            _, status = os.waitpid(ended.si_pid, 0)
            if mark := self._mounting.pop(ended.si_pid, ""):
                code = os.waitstatus_to_exitcode(status)
                self._queue_report(mark, event="mounted", error=_describe_code(code))
            if agent:
                agent.process.returncode = os.waitstatus_to_exitcode(status)
                agent.give_up_at = min(agent.give_up_at, time.monotonic() + _GIVE_UP)
                # First: if the guard dies with its worker, the next worker reads the end from the recording.
                self._note_end(agent)
                # At once, even if the guard dies before the leftovers are killed.
                self._queue_report(agent.mark, event="ended", code=agent.process.returncode, cause=agent.cause)
                self._send_reports()

    def _check_agents(self) -> None:
        now = time.monotonic()
        for agent in self._agents.values():
            if agent.is_running and now >= agent.lease_ends:
                _signal_group(agent.process.pid, signal.SIGSTOP)
        for agent in list(self._agents.values()):
            if not agent.is_running:
                self._sweep_leftovers(agent, now)
            elif now >= agent.give_up_at:
                self._finish_agent(agent, left=[agent.process.pid])
            elif now >= agent.lease_ends:
                self._suspend_agent(agent, now)
            elif now >= agent.kill_at:
                self._kill_agent(agent, "terminated")

    def _sweep_leftovers(self, agent: _GuardedAgent, now: float) -> None:
        found = self._find_leftovers(agent.mark)
        if not found or now >= agent.give_up_at:
            self._finish_agent(agent, left=list(found))
            return
        for pid, mark in found.items():
            # During exec a process briefly shows no environment: without a tag it must be seen twice.
            if mark or pid in agent.seen:
                process_tags.send_signal(pid)
        agent.seen.update(found)

    def _find_leftovers(self, mark: str) -> dict[int, str]:
        """Return the processes that a run left behind, and orphans of no known run, as process id -> process tag."""
        known = {agent.process.pid for agent in self._agents.values() if agent.is_running} | self._given_up
        known |= self._mounting.keys()
        others = self._agents.keys() - {mark}
        return {
            pid: seen
            for pid, seen in process_tags.process_tags()
            if seen == mark or (seen not in others and pid not in known and process_tags.parent_of(pid) == self._pid)
        }

    def _finish_agent(self, agent: _GuardedAgent, left: list[int]) -> None:
        del self._agents[agent.mark]
        self._given_up.update(left)
        code = agent.process.returncode
        if code is None:  # given up: stops subprocess from waiting later
            agent.process.returncode = -signal.SIGKILL
        facts = {"pid": agent.process.pid, "code": code, "swept": len(agent.seen)}
        self._note_end(agent)
        if agent.kept:
            agent.kept.close(keep=agent.by_message or (agent.noted and not left))
        self._queue_report(agent.mark, event="exit", cause=agent.cause, left=left, **facts)

    def _note_end(self, agent: _GuardedAgent) -> None:
        well = agent.process.returncode == 0 and not agent.cause
        if agent.kept is None or agent.noted or not (well or agent.by_message):
            return
        # If the disk is full, the run is repeated in case the worker dies.
        with contextlib.suppress(OSError):
            own = {"pid": agent.process.pid, "code": agent.process.returncode, "swept": len(agent.seen)}
            agent.kept.write_end(agent.facts | own | ({"cause": agent.cause} if agent.cause else {}))
            agent.noted = True

    def _drop_recording(self, agent: _GuardedAgent | None) -> None:
        if agent and agent.kept:
            agent.kept.close(keep=False)
            agent.kept = None

    def _queue_report(self, mark: str, **facts: Any) -> None:
        self._outbox.append(json.dumps({"mark": mark, **facts}).encode())

    def _send_reports(self) -> None:
        """Send queued reports to the worker without blocking, because the worker may be frozen."""
        while self._outbox and self._worker_lives:
            try:
                self._sock.send(self._outbox[0], socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            except OSError:
                self._handle_worker_death()
                return
            self._outbox.popleft()

    def _seconds_until_due(self) -> float | None:
        if any(not agent.is_running for agent in self._agents.values()):
            return _SWEEP_PAUSE
        ends = [min(a.lease_ends, a.kill_at, a.give_up_at) for a in self._agents.values()]
        wake = min(ends, default=math.inf)
        if self._outbox:
            wake = min(wake, time.monotonic() + 0.1)
        return None if math.isinf(wake) else max(0.0, wake - time.monotonic())


def _describe_code(code: int) -> str:
    if code == -signal.SIGALRM:
        return "it took too long"
    return f"it was killed by signal {-code}" if code < 0 else os.strerror(code) if code else ""


def _signal_group(group: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def main() -> None:
    with socket.socket(fileno=int(sys.argv[1])) as sock:
        Guard(sock, int(sys.argv[2])).run()


if __name__ == "__main__":
    main()
