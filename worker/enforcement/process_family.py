"""Kills a process together with the programs that it started. Needs Linux to find these programs."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

_PROC = Path("/proc")
#: Seconds for which the processes of a family are stopped, should they start others meanwhile.
_STOP_SECONDS = 1.0


def kill_family(pid: int) -> None:
    """Kill a process of ours that was not reaped yet, and its descendants; elsewhere than on Linux the process alone.

    All are stopped before the first one is killed, because the children of a killed process are no longer its children.
    """
    stopped: set[int] = set()
    until = time.monotonic() + _STOP_SECONDS
    while running := [each for each in _list_family(pid) if each not in stopped or _is_running(each)]:
        for each in running:
            _send_signal(each, signal.SIGSTOP)
        stopped.update(running)
        if time.monotonic() >= until:
            break
        time.sleep(0.001)
    for each in [pid, *stopped]:
        _send_signal(each, signal.SIGKILL)


def _list_family(pid: int) -> list[int]:
    """Return the process and its descendants if /proc shows it."""
    family = [pid] if (_PROC / str(pid)).exists() else []
    for each in family:
        for children in (_PROC / str(each) / "task").glob("*/children"):
            with contextlib.suppress(OSError):
                family += map(int, children.read_text().split())
    return family


def _is_running(pid: int) -> bool:
    """Return False for a process that is stopped or dead, which starts no other."""
    try:
        return (_PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()[0] not in "TtZX"
    except OSError:
        return False


def _send_signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)
