"""Finding and ending the processes of one run by the mark in their environment.

A mark stands in the environment of an agent and so of everything it starts: it is found again after a double fork,
in a session and process group of its own. Only the standard library: the guard imports this.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

#: The environment name of the mark; its value is ``<turn>.<attempt>.<delivery>``.
MARK = "HELIX_AGENT_MARK"

_PREFIX = f"{MARK}=".encode()


def marks() -> Iterator[tuple[int, str]]:
    """Every process whose environment can be read, with its mark; an empty text for one without."""
    for entry in os.listdir("/proc"):  # noqa: PTH208 - names are enough, and this is on the path of every run
        if not entry.isdecimal():
            continue
        try:
            fd = os.open(f"/proc/{entry}/environ", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:  # gone, or another user's
            yield int(entry), ""
            continue
        try:
            environ = _read(fd)
        except OSError:
            environ = b""
        finally:
            os.close(fd)
        yield int(entry), _mark_in(environ)


def _read(fd: int) -> bytes:
    pieces = []
    while piece := os.read(fd, 65_536):
        pieces.append(piece)
    return b"".join(pieces)


def _mark_in(environ: bytes) -> str:
    start = 0 if environ.startswith(_PREFIX) else environ.find(b"\0" + _PREFIX) + 1
    if start == 0 and not environ.startswith(_PREFIX):
        return ""
    start += len(_PREFIX)
    end = environ.find(b"\0", start)
    return environ[start : end if end >= 0 else len(environ)].decode("utf-8", "replace")


def parent_of(pid: int) -> int:
    """The parent's process id; 0 when the process is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
        # The name, in brackets, may hold spaces and brackets itself; the state and the parent follow the last one.
        return int(stat.rpartition(b")")[2].split()[1])
    except (OSError, IndexError, ValueError):
        return 0


def kill(pid: int) -> None:
    """SIGKILL to one process; one that is gone or out of reach is left alone."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)


def sweep(mark: str, seconds: float = 5.0) -> tuple[int, ...]:
    """Kill every process with this mark, again and again until none is found.

    Returns:
        The processes still there after ``seconds`` (they hang in the kernel); normally none.
    """
    give_up = time.monotonic() + seconds
    while True:
        found = tuple(pid for pid, seen in marks() if seen == mark)
        if not found or time.monotonic() >= give_up:
            return found
        for pid in found:
            kill(pid)
        time.sleep(0.005)
