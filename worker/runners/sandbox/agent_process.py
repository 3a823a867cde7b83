"""Handle of one agent process: its output, its end, and the orders sent to its guard."""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import select
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any

from worker.files.recording import RunRecording

_STDERR_TAIL = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentExit:
    """Describes how the processes of a run ended.

    Attributes:
        code: exit code, or the negative signal number; None if unknown or never started.
        cause: why the guard ended it: ``terminated``, ``lease ended``, ``guard died``; empty if it exited itself.
        error: why it could not be started; ``passing`` if a retry may succeed.
        swept: number of leftover processes that were killed.
        left: processes that could not be killed because they are blocked in the kernel.
    """

    code: int | None = None
    cause: str = ""
    error: str = ""
    passing: bool = False
    pid: int = 0
    swept: int = 0
    left: tuple[int, ...] = ()


class AgentProcess:
    """An agent process that the guard has started, with its input and output.

    Its owner is one thread that calls ``read_output``, or, after ``attach_loop``, an event loop.
    """

    def __init__(
        self,
        mark: str,
        stdout: int,
        stderr: int,
        send: Callable[[dict[str, Any], Sequence[int]], str],
        kill_guard: Callable[[], None],
        recording: RunRecording | None = None,
        stdin: int = -1,
    ) -> None:
        self.mark = mark
        self.pid = 0
        #: Set when the first process has ended; others may still run.
        self.known_end: AgentExit | None = None
        self._send_now = send
        self._send: Callable[[dict[str, Any]], object] = lambda request: send(request, ())
        self._stdin = stdin
        self._kill_guard = kill_guard
        self._ended = threading.Event()
        self._exit = AgentExit()
        self._mounted: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._on_end: Callable[[], object] = lambda: None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = threading.Lock()
        self._fds = {stdout, stderr}
        self._stdout = stdout
        self._recording = recording
        self._tail = b""
        self._poll = select.poll()
        for fd in self._fds:
            os.set_blocking(fd, False)
            self._poll.register(fd, select.POLLIN)

    def read_output(self, seconds: float) -> bytes | None:
        """Return the next piece of standard output, empty bytes after a timeout, or None at the end."""
        if self._stdout not in self._fds:
            return None
        piece: bytes | None = b""
        for fd, _ in self._poll.poll(seconds * 1000):
            data = self._read_piece(fd)
            if fd == self._stdout:
                piece = data or None
        return piece

    def _read_piece(self, fd: int) -> bytes:
        recording = self._recording if fd == self._stdout else None
        data = recording.record_piece(fd) if recording else None
        if recording and data is None:
            recording.discard()
            self._send({"do": "unrecorded", "mark": self.mark, "record": recording.path})
            self._recording = None
        if data is None:
            data = os.read(fd, 65_536)
        if not data:
            self._close_output(fd)
        if fd != self._stdout:
            self._tail = (self._tail + data)[-_STDERR_TAIL:]
        return data

    def set_recording(self, recording: RunRecording | None) -> None:
        """Record the standard output in another file from now on. Nobody may be reading the output meanwhile.

        May block.
        """
        before, self._recording = self._recording, recording
        if before:
            before.close()
        if recording:
            request = {"do": "record", "mark": self.mark, "record": recording.path}
            if self.output_ended or self._send_now(request, [recording.fd, self._stdout]):
                recording.discard()
                self._recording = None

    def attach_loop(
        self,
        loop: asyncio.AbstractEventLoop,
        hear: Callable[[bytes], object],
        on_end: Callable[[], object],
        orders: Executor,
    ) -> None:
        """Let an event loop read the process's outputs, and call ``hear`` with each piece of standard output.

        Call this method in that loop. ``on_end`` is called at the end. ``orders`` runs the requests to the guard, which
        may block.
        """
        send, self._loop = self._send_now, loop

        def send_later(request: dict[str, Any]) -> None:
            orders.submit(send, request, ())

        def on_readable(fd: int) -> None:
            with contextlib.suppress(BlockingIOError):
                if (piece := self._read_piece(fd)) and fd == self._stdout:
                    hear(piece)

        self._send = send_later
        for fd in self._fds:
            loop.add_reader(fd, on_readable, fd)
        with self._lock:
            if not self._ended.is_set():
                self._on_end = lambda: loop.call_soon_threadsafe(on_end)
                return
        loop.call_soon(on_end)

    def detach_loop(self) -> None:
        """Stop reading the outputs in the event loop. Afterwards any thread may read them."""
        loop, self._loop = self._loop, None
        for fd in self._fds if loop else ():
            loop.remove_reader(fd)  # type: ignore[union-attr]

    def write_input(self, content: bytes, seconds: float) -> bool:
        """Write to standard input. Return False if the agent does not read it within ``seconds``. May block."""
        writable, give_up, rest = select.poll(), time.monotonic() + seconds, memoryview(content)
        if self._stdin < 0:
            return False
        writable.register(self._stdin, select.POLLOUT)
        while rest:
            if not writable.poll(max(0.0, give_up - time.monotonic()) * 1000):
                return False
            try:
                rest = rest[os.write(self._stdin, rest) :]
            except BlockingIOError:
                continue
            except OSError:
                return False
        return True

    def close_input(self) -> None:
        """Close the agent's standard input. Thread-safe."""
        with self._lock:
            stdin, self._stdin = self._stdin, -1
        if stdin >= 0:
            os.close(stdin)

    @property
    def output_ended(self) -> bool:
        """Return whether standard output has ended. The process may still be running."""
        return self._stdout not in self._fds

    @property
    def is_silent(self) -> bool:
        """Return whether standard output and standard error are both open and have no unread data."""
        return len(self._fds) == 2 and not self._poll.poll(0)

    def call_at_end(self, report: Callable[[], object]) -> None:
        """Register a function that is called, in any thread, when the process has ended."""
        with self._lock:
            if not self._ended.is_set():
                self._on_end = report
                return
        report()

    def read_stderr(self) -> str:
        """Return the last 4 kB of standard error. Call only after the process has ended."""
        with contextlib.suppress(BlockingIOError):
            for fd in self._fds - {self._stdout}:
                while data := os.read(fd, 65_536):
                    self._tail = (self._tail + data)[-_STDERR_TAIL:]
        return self._tail.decode("utf-8", "replace")

    def wait_for_end(self, seconds: float) -> AgentExit | None:
        """Wait up to ``seconds`` for all processes to end. Return how they ended, or None if some are still running."""
        return self._exit if self._ended.wait(seconds) else None

    def extend_lease(self, lease_ends: float) -> None:
        """Extend the lease, so that the guard does not kill the agent before ``lease_ends`` (``time.monotonic()``)."""
        self._send({"do": "extend", "mark": self.mark, "lease_ends": lease_ends})

    def add_mounts(self, mounts: Sequence[tuple[str, bool]], seconds: float) -> str:
        """Mount paths, writable or read-only, into the sandbox. Return an error, or an empty string. May block."""
        self._send({"do": "mount", "mark": self.mark, "mounts": mounts})
        try:
            return self._mounted.get(timeout=seconds)
        except queue.Empty:
            return "the guard does not answer"

    def report_mounts(self, error: str) -> None:
        """Record that the guard has mounted the files and folders, or the error that prevented this."""
        self._mounted.put(error)

    def terminate_agent(self, grace: float) -> None:
        """Send SIGTERM to the agent's process group, and SIGKILL ``grace`` seconds later."""
        self._send({"do": "terminate", "mark": self.mark, "grace": grace})

    def kill_guard(self) -> None:
        """Kill an unresponsive guard together with all its agents."""
        self._kill_guard()

    def close(self) -> None:
        """Close all file descriptors and the recording."""
        self.close_input()
        if self._recording:
            self._recording.close()
            self._recording = None
        for fd in list(self._fds):
            self._close_output(fd)

    def report_end(self, report: AgentExit) -> None:
        """Record the process's end as reported by the guard, and wake all waiting callers."""
        with self._lock:
            self._exit = report
            self._ended.set()
            on_end = self._on_end
        self._mounted.put("the agent has ended")
        with contextlib.suppress(RuntimeError):  # the loop is closed
            on_end()

    def _close_output(self, fd: int) -> None:
        self._poll.unregister(fd)
        if self._loop:
            self._loop.remove_reader(fd)
        self._fds.discard(fd)
        os.close(fd)
