"""Ends what a bench has started, whatever ends the bench: SIGKILL of a bench leaves no server behind.

A small process holds the read end of a pipe whose other end only the bench has. At its end it kills every process that
has the bench's folder in its environment or on its command line, and removes the folder.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

#: Each process that a bench starts inherits it.
VARIABLE = "BENCH_FOLDER"
_PATIENCE_SECONDS, _PAUSE_SECONDS = 20.0, 0.05


@contextlib.contextmanager
def swept(folder: Path) -> Iterator[None]:
    """Whatever this process and its children start in the block ends with the block, or with this process."""
    os.environ[VARIABLE] = str(folder)
    sweeper = subprocess.Popen(
        [sys.executable, "-I", "-S", __file__, str(folder)], stdin=subprocess.PIPE, start_new_session=True
    )
    try:
        yield
    finally:
        del os.environ[VARIABLE]
        sweeper.communicate()


def _left(folder: bytes) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                if folder in (entry / "environ").read_bytes() + (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
    return found


def main() -> None:
    """Wait for the end of the bench, then sweep."""
    folder = sys.argv[1]
    sys.stdin.buffer.read()
    ends = time.monotonic() + _PATIENCE_SECONDS
    while (left := _left(os.fsencode(folder))) and time.monotonic() < ends:
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_PAUSE_SECONDS)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
