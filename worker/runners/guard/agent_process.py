"""One agent process as its owner sees it: its output, its end, and the orders about it."""

from __future__ import annotations

import asyncio
import contextlib
import os
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
class Exit:
    """The end of a run's processes. None of them is left, save those in ``left``.

    Attributes:
        code: exit code, or the negative number of the signal that ended it; None when it never started or is unknown.
        cause: why it was ended: empty when it ended by itself, else ``terminated``, ``lease ended``, ``guard died``.
        error: why it could not be started, or empty. passing: it might work another time.
        pid: its process id, 0 when unknown. swept: how many processes it had left behind.
        left: processes that could not be ended, because they hang in the kernel.
    """

    code: int | None = None
    cause: str = ""
    error: str = ""
    passing: bool = False
    pid: int = 0
    swept: int = 0
    left: tuple[int, ...] = ()


class AgentProcess:
    """One agent, started by the guard; closing it frees the descriptors.

    Owned by one thread, which asks for output with ``read``; or, once ``attach`` was called, by an event loop.
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
        #: Its first process; 0 until the guard has said.
        self.pid = 0
        #: How its first process ended, once that is known; others of it may still be there.
        self.known_end: Exit | None = None
        self._send_now = send
        self._send: Callable[[dict[str, Any]], object] = lambda request: send(request, ())
        self._stdin = stdin
        self._kill_guard = kill_guard
        self._ended = threading.Event()
        self._exit = Exit()
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

    def read(self, seconds: float) -> bytes | None:
        """The next piece of standard output; empty when none came within ``seconds``, None at its end."""
        if self._stdout not in self._fds:
            return None
        piece: bytes | None = b""
        for fd, _ in self._poll.poll(seconds * 1000):
            data = self._piece(fd)
            if fd == self._stdout:
                piece = data or None
        return piece

    def _piece(self, fd: int) -> bytes:
        """Return what can be read of one of its outputs; empty at its end. Standard error is kept."""
        recording = self._recording if fd == self._stdout else None
        data = recording.piece(fd) if recording else None
        if recording and data is None:  # that ends here
            recording.give_up()
            self._send({"do": "unrecorded", "mark": self.mark, "record": recording.path})
            self._recording = None
        if data is None:
            data = os.read(fd, 65_536)
        if not data:
            self._close(fd)
        if fd != self._stdout:
            self._tail = (self._tail + data)[-_STDERR_TAIL:]
        return data

    def record(self, recording: RunRecording | None) -> None:
        """Record what it says from now on there, and nowhere else; None: nowhere. While nobody reads it. May block."""
        before, self._recording = self._recording, recording
        if before:
            before.close()
        if recording:
            request = {"do": "record", "mark": self.mark, "record": recording.path}
            if self.output_ended or self._send_now(request, [recording.fd, self._stdout]):
                recording.give_up()
                self._recording = None

    def attach(
        self,
        loop: asyncio.AbstractEventLoop,
        hear: Callable[[bytes], object],
        on_end: Callable[[], object],
        orders: Executor,
    ) -> None:
        """Have its output read by a loop. In that loop.

        ``hear`` gets each piece of standard output; ``on_end`` is called once its end is known: by then ``read(0)``
        gives what is still unread. ``orders`` sends the orders to the guard, one after the other: that may block.
        """
        send, self._loop = self._send_now, loop

        def send_later(request: dict[str, Any]) -> None:
            orders.submit(send, request, ())

        def on_readable(fd: int) -> None:
            with contextlib.suppress(BlockingIOError):
                if (piece := self._piece(fd)) and fd == self._stdout:
                    hear(piece)

        self._send = send_later
        for fd in self._fds:
            loop.add_reader(fd, on_readable, fd)
        with self._lock:
            if not self._ended.is_set():
                self._on_end = lambda: loop.call_soon_threadsafe(on_end)
                return
        loop.call_soon(on_end)

    def detach(self) -> None:
        """Have the loop read it no more. In that loop; from then on any thread may own it."""
        loop, self._loop = self._loop, None
        for fd in self._fds if loop else ():
            loop.remove_reader(fd)  # type: ignore[union-attr]

    def write(self, content: bytes, seconds: float) -> bool:
        """Write to its standard input; False when it has ended, or did not read all within ``seconds``. May block."""
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
        """Let it read the end of its standard input: it is asked nothing more. For any thread."""
        with self._lock:
            stdin, self._stdin = self._stdin, -1
        if stdin >= 0:
            os.close(stdin)

    @property
    def output_ended(self) -> bool:
        """Return whether its standard output has ended; it may live on."""
        return self._stdout not in self._fds

    @property
    def silent(self) -> bool:
        """Return whether nothing of it waits to be read, and neither output has ended."""
        return len(self._fds) == 2 and not self._poll.poll(0)

    def when_ended(self, report: Callable[[], object]) -> None:
        """Call ``report`` at its end, in whatever thread hears of it; ``report`` must not block."""
        with self._lock:
            if not self._ended.is_set():
                self._on_end = report
                return
        report()

    def stderr(self) -> str:
        """The last 4 kB of standard error; to be read after the end."""
        with contextlib.suppress(BlockingIOError):
            for fd in self._fds - {self._stdout}:
                while data := os.read(fd, 65_536):
                    self._tail = (self._tail + data)[-_STDERR_TAIL:]
        return self._tail.decode("utf-8", "replace")

    def wait(self, seconds: float) -> Exit | None:
        """Return how it ended; None when some process of it is still there after ``seconds``."""
        return self._exit if self._ended.wait(seconds) else None

    def extend(self, lease_ends: float) -> None:
        """Let it live until ``lease_ends`` by ``time.monotonic()``, whatever becomes of this worker."""
        self._send({"do": "extend", "mark": self.mark, "lease_ends": lease_ends})

    def terminate(self, grace: float) -> None:
        """SIGTERM to its process group, SIGKILL after ``grace`` seconds; at once for 0."""
        self._send({"do": "terminate", "mark": self.mark, "grace": grace})

    def abandon(self) -> None:
        """The guard does not obey: end it, and all its agents with it."""
        self._kill_guard()

    def close(self) -> None:
        """Free what it holds."""
        self.close_input()
        if self._recording:
            self._recording.close()
            self._recording = None
        for fd in list(self._fds):
            self._close(fd)

    def ended(self, report: Exit) -> None:
        """The guard's report has come."""
        with self._lock:
            self._exit = report
            self._ended.set()
            on_end = self._on_end
        with contextlib.suppress(RuntimeError):  # the loop was closed: nobody waits
            on_end()

    def _close(self, fd: int) -> None:
        self._poll.unregister(fd)
        if self._loop:
            self._loop.remove_reader(fd)
        self._fds.discard(fd)
        os.close(fd)
