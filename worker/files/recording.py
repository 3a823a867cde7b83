"""Records an agent's standard output in a file beside its delivery's folder.

``<folder>.output`` holds the output; ``<folder>.finished`` appears when the run exits with code 0, so that another
worker can adopt the finished run. The kernel splices each piece into the file before the worker reads it, so killing
worker or guard loses nothing. Standard library only, for the guard.
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

#: Most bytes recorded; a longer run is repeated if its worker dies.
MOST_BYTES = 64 * 2**20
_PIECE = 65_536
_OUTPUT, _FINISHED = ".output", ".finished"
CALLS = ".calls"
ENDINGS = (_OUTPUT, _FINISHED, CALLS)
_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_OLD = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
#: Key for the length of ``.output`` that belongs to a finished recording, in bytes.
_AT = "at"
_SPLICE_F_NONBLOCK = 2


class RunRecording:
    """Records a running agent's standard output in a file, so that another worker can use the finished run."""

    def __init__(self, folder: Path, head: bytes = b"") -> None:
        """Create the recording's file and write ``head`` to it, before any output of the agent."""
        self.path = str(folder)
        self.fd = os.open(self.path + _OUTPUT, _NEW, 0o600)
        try:
            self._at = os.write(self.fd, head)
        except OSError:
            self.discard()
            raise

    def record_piece(self, pipe: int) -> bytes | None:
        """Record and return the agent's next output: empty at the end, None if recording failed.

        Raises ``BlockingIOError`` if the pipe is empty for now.
        """
        if self._at > MOST_BYTES:
            return None
        try:
            size = os.splice(pipe, self.fd, _PIECE, offset_dst=self._at)
            piece = os.pread(self.fd, size, self._at)
        except BlockingIOError:
            raise
        except OSError:  # the disk is full, or the file system lacks splice
            return None
        self._at += size
        return piece

    def discard(self) -> None:
        """Close and delete the incomplete recording."""
        with contextlib.suppress(OSError):
            os.unlink(self.path + _OUTPUT)  # noqa: PTH108
        self.close()

    def close(self) -> None:
        os.close(self.fd)


@dataclass(frozen=True, slots=True)
class GuardRecording:
    """A recording of an agent's output that the guard process completes when the run ends."""

    path: str
    fd: int
    pipe: int

    def write_end(self, facts: dict[str, Any]) -> None:
        """Write the unread output and facts about the end of the run to the ``.finished`` file."""
        size, unread = -1, b""
        while size != (size := os.fstat(self.fd).st_size):  # the worker read a piece meanwhile
            unread = _copy_pipe(self.pipe)
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
        """Close the recording's files, and delete the recording unless ``keep`` is True."""
        os.close(self.fd)
        os.close(self.pipe)
        if not keep:
            delete_recording(self.path)


def _copy_pipe(pipe: int) -> bytes:
    count = ctypes.c_int()
    fcntl.ioctl(pipe, termios.FIONREAD, count)
    if not count.value:
        return b""
    reader, writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        # A pipe's entry may hold a single byte.
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
    """The complete output of a run, with the facts that the supervising process recorded at its end."""

    output: bytes
    facts: dict[str, Any]


def read_finished(folder: Path) -> FinishedRun | None:
    """Return the finished run recorded for a delivery's folder, or None if no recording is complete."""
    try:
        more, _, last = _read_regular_file(f"{folder}{_FINISHED}").removesuffix(b"\n").rpartition(b"\n")
        facts = json.loads(last)
        if not isinstance(facts, dict):
            return None
        at = int(facts.pop(_AT))
        said = _read_regular_file(f"{folder}{_OUTPUT}")[:at] if at else b""
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return FinishedRun(said + more, facts) if len(said) == at else None


def read_recording(folder: Path) -> FinishedRun | None:
    """Return the recorded output of a run, or None if nothing was recorded.

    The result's ``facts`` are empty if the recording broke off before the run's end.
    """
    if found := read_finished(folder):
        return found
    try:
        return FinishedRun(_read_regular_file(f"{folder}{_OUTPUT}"), {})
    except OSError:
        return None


def _read_regular_file(path: str) -> bytes:
    with os.fdopen(os.open(path, _OLD), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(f"{path} is not a regular file")
        return file.read()


def delete_recording(folder: Path | str) -> None:
    """Delete all recording files beside a delivery's folder."""
    for end in (_OUTPUT, _FINISHED, CALLS):
        with contextlib.suppress(OSError):
            os.unlink(f"{folder}{end}")  # noqa: PTH108
