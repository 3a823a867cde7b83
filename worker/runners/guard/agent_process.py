"""One agent process as its owner sees it: its output, its end, and the orders about it."""

from __future__ import annotations

import contextlib
import os
import select
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

_STDERR_TAIL = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """How a run's processes ended. None of them is left, save those in ``left``.

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
    """One agent, started by the guard. Owned by one thread; closing it frees the descriptors."""

    def __init__(
        self, mark: str, stdout: int, stderr: int, tell: Callable[[dict[str, Any]], str], kill_guard: Callable[[], None]
    ) -> None:
        self.mark = mark
        #: Its first process; 0 until the guard has said.
        self.pid = 0
        self._tell = tell
        self._kill_guard = kill_guard
        self._ended = threading.Event()
        self._exit = Exit()
        self._fds = {stdout, stderr}
        self._stdout = stdout
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
            data = os.read(fd, 65_536)
            if not data:
                self._close(fd)
            if fd == self._stdout:
                piece = data or None
            else:
                self._tail = (self._tail + data)[-_STDERR_TAIL:]
        return piece

    def stderr(self) -> str:
        """The last 4 kB of standard error; to be read after the end."""
        with contextlib.suppress(BlockingIOError):
            for fd in self._fds - {self._stdout}:
                while data := os.read(fd, 65_536):
                    self._tail = (self._tail + data)[-_STDERR_TAIL:]
        return self._tail.decode("utf-8", "replace")

    def wait(self, seconds: float) -> Exit | None:
        """How it ended; None when some process of it is still there after ``seconds``."""
        return self._exit if self._ended.wait(seconds) else None

    def extend(self, lease_ends: float) -> None:
        """Let it live until ``lease_ends`` by ``time.monotonic()``, whatever becomes of this worker."""
        self._tell({"do": "extend", "mark": self.mark, "lease_ends": lease_ends})

    def terminate(self, grace: float) -> None:
        """SIGTERM to its process group, SIGKILL after ``grace`` seconds; at once for 0."""
        self._tell({"do": "terminate", "mark": self.mark, "grace": grace})

    def abandon(self) -> None:
        """The guard does not do what it is told: end it, and all its agents with it."""
        self._kill_guard()

    def close(self) -> None:
        """Free what it holds."""
        for fd in list(self._fds):
            self._close(fd)

    def ended(self, report: Exit) -> None:
        """The guard's report has come."""
        self._exit = report
        self._ended.set()

    def _close(self, fd: int) -> None:
        self._poll.unregister(fd)
        self._fds.discard(fd)
        os.close(fd)
