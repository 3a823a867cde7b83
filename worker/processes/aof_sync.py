"""Run a server, and bring its append-only file to the disk every second.

The server's own ``appendfsync everysec`` holds back its writes for up to two seconds while it waits for the disk, and
answers its clients all the same: killed in that moment, it has lost what it acknowledged. With ``appendfsync no`` each
write reaches the kernel before the answer leaves, where no kill of a process can undo it; the rest to do once a
second is asking the kernel to write it out, and that this module does beside the server. Standard library only: it is
run as a separate script, ``python -I -S aof_sync.py DIRECTORY COMMAND...``.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
from pathlib import Path

INTERVAL_SECONDS = 1.0
_PR_SET_PDEATHSIG = 1


def sync(directory: Path) -> int:
    """Wait until every append-only file below ``directory`` is on the disk; returns how many there are."""
    files = sorted(directory.glob("appendonlydir/*.incr.aof"))
    for file in files:
        # One that the server has just replaced is gone, and its successor is synced by the server itself.
        with contextlib.suppress(FileNotFoundError):
            handle = os.open(file, os.O_RDONLY)
            try:
                os.fdatasync(handle)
            finally:
                os.close(handle)
    return len(files)


def keep_synced(directory: Path, server: int) -> None:
    """Sync every second for as long as process ``server``, our parent, lives. A stop is its affair: ignored here."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    for stop in signal.SIGINT, signal.SIGTERM:
        signal.signal(stop, signal.SIG_IGN)
    while os.getppid() == server:
        started = time.monotonic()
        try:
            sync(directory)
        except OSError as error:
            sys.stderr.write(f"aof_sync: {directory}: {error}\n")
        time.sleep(max(0.0, INTERVAL_SECONDS - (time.monotonic() - started)))


def main(directory: str, command: list[str]) -> None:
    """Become ``command``, with a child process beside it that syncs. Neither call returns."""
    server = os.getpid()
    if os.fork():
        os.execv(command[0], command)  # noqa: S606 - no shell is meant
    os.closerange(3, 1024)  # among them the lock that says that the server runs
    # A separate program: nobody who looks for the server's command line finds this process too.
    os.execv(sys.executable, [sys.executable, "-I", "-S", __file__, "--beside", str(server), directory])  # noqa: S606


if __name__ == "__main__":
    if sys.argv[1] == "--beside":
        keep_synced(Path(sys.argv[3]), int(sys.argv[2]))
    else:
        main(sys.argv[1], sys.argv[2:])
