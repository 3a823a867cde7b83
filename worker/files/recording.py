"""The recording of a run: all that its agent said on standard output, in a file beside its delivery's folder.

``<folder>.output`` while the agent runs; ``<folder>.finished``, with a last line about its end, once it has ended by
itself with exit code 0. Who takes the turn over from a worker that died finds a finished run there, and need not pay
for it again. The kernel moves each piece from the pipe into the file before the worker reads it there: so a worker
that is killed at any moment loses none. Only the standard library: the guard imports this.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

#: Longest output that is recorded, in bytes: a run that says more is run again when its worker dies.
MOST_BYTES = 64 * 2**20
_PIECE = 65_536
_OUTPUT, _FINISHED = ".output", ".finished"
_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Recording:
    """A recording on the worker's side, while it is made. Closing it frees the descriptor."""

    def __init__(self, folder: Path) -> None:
        """Raises ``OSError``: it cannot be made."""
        self.path = str(folder)
        self.fd = os.open(self.path + _OUTPUT, _NEW, 0o600)
        self._at = 0

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

    def close(self) -> None:
        """Free the descriptor; the file stays."""
        os.close(self.fd)


@dataclass(frozen=True, slots=True)
class Kept:
    """The same recording on the guard's side: the file, and the pipe that the agent writes into."""

    path: str
    fd: int
    pipe: int

    def whole(self, *, drain: bool) -> bool:
        """Whether all that the agent said is in the file. To be asked when it has ended.

        Args:
            drain: nobody else reads the pipe any more: what is left in it is moved into the file.
        """
        poll = select.poll()
        poll.register(self.pipe, select.POLLIN)
        while any(event & select.POLLIN for _, event in poll.poll(0)):
            if not drain:
                return False
            os.splice(self.pipe, self.fd, _PIECE, offset_dst=os.fstat(self.fd).st_size)
        return True

    def finish(self, facts: dict[str, Any]) -> None:
        """Say how the run ended; from now on it can be adopted. Raises ``OSError``: the disk is full."""
        os.pwrite(self.fd, b"\n" + json.dumps(facts).encode() + b"\n", os.fstat(self.fd).st_size)
        os.rename(self.path + _OUTPUT, self.path + _FINISHED)  # noqa: PTH104 - the guard knows no pathlib

    def close(self, *, keep: bool) -> None:
        """Free the descriptors; without ``keep`` the unfinished recording goes."""
        os.close(self.fd)
        os.close(self.pipe)
        if not keep:
            with contextlib.suppress(OSError):
                os.unlink(self.path + _OUTPUT)  # noqa: PTH108


@dataclass(frozen=True, slots=True)
class Finished:
    """A run that ended by itself with exit code 0: its output, and the facts that the guard noted."""

    output: bytes
    facts: dict[str, Any]


def finished(folder: Path) -> Finished | None:
    """The finished run of a delivery's folder; None without a recording that can be read."""
    try:
        fd = os.open(f"{folder}{_FINISHED}", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(fd, "rb") as file:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                return None
            output, _, last = file.read().removesuffix(b"\n").rpartition(b"\n")
        facts = json.loads(last)
    except (OSError, ValueError):
        return None
    return Finished(output, facts) if isinstance(facts, dict) else None


def forget(folder: Path | str) -> None:
    """Remove what is recorded of a delivery: its result is in the store. First the name that the guard may change."""
    for end in (_OUTPUT, _FINISHED):
        with contextlib.suppress(OSError):
            os.unlink(f"{folder}{end}")  # noqa: PTH108
