"""Detects calls that block a worker's event loop, so that a test of the engine fails because of them.

Python's audit events show calls that may block, however fast they were: no test depends on how long something took.
``tests/long_steps.py`` detects long computations.
"""

import os
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.long_steps import LongSteps
from worker.turns.loops.loop import Loop

#: Audit events of calls that wait for a disk, a process or another host.
BLOCKING = {
    "fcntl.flock",
    "os.link",
    "os.listdir",
    "os.mkdir",
    "os.remove",
    "os.rename",
    "os.scandir",
    "shutil.copyfile",
    "shutil.rmtree",
    "socket.getaddrinfo",
    "subprocess.Popen",
}
_watching: dict[int, list[str]] = {}
_installed = threading.Event()


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if not _watching or (found := _watching.get(threading.get_ident())) is None:
        return
    if event in BLOCKING or (event == "open" and _writes(arguments)):
        stack = traceback.format_stack()
        if any("importlib" in line for line in stack):
            return  # an import, or the name of a library's version that redis asks for with each connection
        ours = [line for line in stack if "/worker/" in line or "/tests/" in line]
        found.append(f"{event}{arguments[:2]!r}\n" + "".join(ours[-6:-1]))


def _writes(arguments: tuple[Any, ...]) -> bool:
    """Return True if a file is opened for writing; imports read small files, which is allowed."""
    return bool(int(arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))


@contextmanager
def nothing_blocks(loop: Loop) -> Iterator[None]:
    """Fail if a blocking call or a long computation holds up the loop during the ``with`` block."""
    if not _installed.is_set():
        _installed.set()
        sys.addaudithook(_hook)
    thread, steps = loop.run_and_wait(_identity()), LongSteps()
    found = _watching[thread] = []
    loop.run_and_wait(steps.watch())
    try:
        yield
    finally:
        loop.run_and_wait(steps.leave())
        del _watching[thread]
    found += steps.found()
    assert not found, "the event loop was held up by:\n" + "\n".join(found)


async def _identity() -> int:
    return threading.get_ident()
