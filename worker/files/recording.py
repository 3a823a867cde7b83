"""The recording of a run: all that its agent said on standard output, in a file beside its delivery's folder.

``<folder>.output`` is what it said; ``<folder>.finished`` comes beside it when it has ended by itself with exit code 0:
what was in the pipe then, and a last line about its end. Who takes the turn over from a worker that died finds a
finished run there, and need not pay for it again. The kernel moves each piece from the pipe into the file before the
worker reads it there: so a worker that is killed at any moment loses none. The guard copies what is still in the pipe
before it reports the end to anybody: so both may be killed. An agent that is kept for several messages has a recording
for each of them; its ``.finished`` comes however its process ends, and only the output says whether the message had
ended. Only the standard library: the guard imports this.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import json
import os
import stat
import termios
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

#: Longest output that is recorded, in bytes: a run that says more is run again when its worker dies.
MOST_BYTES = 64 * 2**20
_PIECE = 65_536
_OUTPUT, _FINISHED = ".output", ".finished"
#: Beside them: the model calls of the run, as its door saw them.
CALLS = ".calls"
#: All that may lie beside a delivery's folder.
ENDINGS = (_OUTPUT, _FINISHED, CALLS)
_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_OLD = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
#: Where in its facts a finished recording says how much of ``.output`` belongs to it, in bytes.
_AT = "at"
_SPLICE_F_NONBLOCK = 2


class RunRecording:
    """A recording on the worker's side, while it is made. Closing it frees the descriptor."""

    def __init__(self, folder: Path, head: bytes = b"") -> None:
        """``head`` comes before what the agent says. Raises ``OSError``: it cannot be made."""
        self.path = str(folder)
        self.fd = os.open(self.path + _OUTPUT, _NEW, 0o600)
        try:
            self._at = os.write(self.fd, head)
        except OSError:
            self.give_up()
            raise

    def piece(self, pipe: int) -> bytes | None:
        """The next piece of what the agent said, recorded; empty at its end, None when it cannot be recorded.

        Raises:
            BlockingIOError: the pipe holds nothing now.
        """
        if self._at > MOST_BYTES:
            return None
        try:
            size = os.splice(pipe, self.fd, _PIECE, offset_dst=self._at)
            piece = os.pread(self.fd, size, self._at)
        except BlockingIOError:
            raise
        except OSError:  # a full disk, or a file system without splice
            return None
        self._at += size
        return piece

    def give_up(self) -> None:
        """Record nothing more: remove the file, so that nobody takes it for the whole."""
        with contextlib.suppress(OSError):
            os.unlink(self.path + _OUTPUT)  # noqa: PTH108
        self.close()

    def close(self) -> None:
        """Free the descriptor; the file stays."""
        os.close(self.fd)


@dataclass(frozen=True, slots=True)
class GuardRecording:
    """The same recording on the guard's side: the file, and the pipe that the agent writes into."""

    path: str
    fd: int
    pipe: int

    def finish(self, facts: dict[str, Any]) -> None:
        """Note how the run ended, with what its worker has not read yet; from now on it can be adopted.

        The worker may read on meanwhile: pipe and file stay as they are.

        Raises:
            OSError: the disk is full, or the pipe cannot be copied.
        """
        size, unread = -1, b""
        while size != (size := os.fstat(self.fd).st_size):  # the worker moved a piece in between
            unread = _held_by(self.pipe)
        if not os.fstat(self.fd).st_nlink:
            raise FileNotFoundError(errno.ENOENT, "its worker has given it up")
        end = json.dumps({**facts, _AT: size}).encode()
        file = os.open(self.path + _FINISHED, _NEW, 0o600)
        try:
            left = memoryview(b"%b\n%b\n" % (unread, end))
            while left:
                left = left[os.write(file, left) :]
        finally:
            os.close(file)

    def close(self, *, keep: bool) -> None:
        """Free the descriptors; without ``keep`` the recording goes."""
        os.close(self.fd)
        os.close(self.pipe)
        if not keep:
            forget(self.path)


def _held_by(pipe: int) -> bytes:
    """All that is in a pipe, which keeps it. Raises ``OSError``: it cannot be copied."""
    count = ctypes.c_int()
    fcntl.ioctl(pipe, termios.FIONREAD, count)
    if not count.value:
        return b""
    reader, writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        # An agent may have enlarged its pipe, and each entry of a pipe may hold a single byte.
        fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, fcntl.fcntl(pipe, fcntl.F_GETPIPE_SZ))
        size = ctypes.CDLL(None, use_errno=True).tee(pipe, writer, ctypes.c_size_t(count.value), _SPLICE_F_NONBLOCK)
        if size < 0 and (error := ctypes.get_errno()) != errno.EAGAIN:
            raise OSError(error, os.strerror(error))
        return os.read(reader, size) if size > 0 else b""
    finally:
        os.close(reader)
        os.close(writer)


@dataclass(frozen=True, slots=True)
class FinishedRun:
    """A run that ended, as ``finished`` says: its output, and the facts that the guard noted."""

    output: bytes
    facts: dict[str, Any]


def finished(folder: Path) -> FinishedRun | None:
    """The finished run of a delivery's folder; None without a recording that can be read."""
    try:
        more, _, last = _content(f"{folder}{_FINISHED}").removesuffix(b"\n").rpartition(b"\n")
        facts = json.loads(last)
        if not isinstance(facts, dict):
            return None
        at = int(facts.pop(_AT))
        said = _content(f"{folder}{_OUTPUT}")[:at] if at else b""
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return FinishedRun(said + more, facts) if len(said) == at else None


def recorded(folder: Path) -> FinishedRun | None:
    """All that is recorded of a run, also where nobody noted its end: then without facts. None for nothing."""
    if found := finished(folder):
        return found
    try:
        return FinishedRun(_content(f"{folder}{_OUTPUT}"), {})
    except OSError:
        return None


def _content(path: str) -> bytes:
    """A regular file's content. Raises ``OSError``: it cannot be read, or is a link, a folder or a FIFO."""
    with os.fdopen(os.open(path, _OLD), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(f"{path} is not a regular file")
        return file.read()


def forget(folder: Path | str) -> None:
    """Remove what is recorded of a delivery: its result is in the store, or it has none that counts."""
    for end in (_OUTPUT, _FINISHED, CALLS):
        with contextlib.suppress(OSError):
            os.unlink(f"{folder}{end}")  # noqa: PTH108
