"""Kills a process together with the programs that it started. Needs Linux to find these programs."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Callable, Collection, Iterable
from pathlib import Path

_PROC = Path("/proc")
_PR_SET_CHILD_SUBREAPER = 36
#: Seconds for which the processes of a family are stopped, should they start others meanwhile.
_STOP_SECONDS = 1.0


def adopt_orphans() -> None:
    """Make this process the parent of all its descendants whose parents end, so that they stay in its family."""
    with contextlib.suppress(AttributeError, OSError):  # not Linux
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def kill_family(pid: int) -> None:
    """Kill a process of ours that was not reaped yet, and its descendants; elsewhere than on Linux the process alone.

    All are stopped before the first one is killed, because the children of a killed process are no longer its children.
    """
    for each in [pid, *_stop_processes(lambda: _list_families([pid]))]:
        _send_signal(each, signal.SIGKILL)


def kill_descendants(spared: Collection[int]) -> None:
    """Kill all descendants of this process, except its children ``spared`` and the descendants of those."""
    reap_children()
    own = os.getpid()
    started = _stop_processes(lambda: _list_families(each for each in list_children(own) if each not in spared))
    for each in started:
        _send_signal(each, signal.SIGKILL)
    if started:
        reap_children()


def reap_children() -> None:
    """Reap all children that have ended, also adopted ones that nobody else waits for."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _stop_processes(find: Callable[[], list[int]]) -> set[int]:
    """Stop the processes that ``find`` returns until it returns none that still runs, and return all their ids."""
    stopped: set[int] = set()
    until = time.monotonic() + _STOP_SECONDS
    while running := [each for each in find() if each not in stopped or _is_running(each)]:
        for each in running:
            _send_signal(each, signal.SIGSTOP)
        stopped.update(running)
        if time.monotonic() >= until:
            break
        time.sleep(0.001)
    return stopped


def _list_families(heads: Iterable[int]) -> list[int]:
    """Return processes and their descendants if /proc shows them."""
    family = [pid for pid in heads if (_PROC / str(pid)).exists()]
    for each in family:
        family += list_children(each)
    return family


def list_children(pid: int) -> list[int]:
    """Return the children of a process if /proc shows them."""
    found: list[int] = []
    for children in (_PROC / str(pid) / "task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += map(int, children.read_text().split())
    return found


def _is_running(pid: int) -> bool:
    """Return False for a process that is stopped or dead, which starts no other."""
    try:
        return (_PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()[0] not in "TtZX"
    except OSError:
        return False


def _send_signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)
