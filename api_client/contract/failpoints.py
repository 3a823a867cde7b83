"""Failpoints: places where a test makes this process die, freeze, raise or wait.

``HELIX_FAILPOINT=output.received=kill@3`` kills the process when it passes the point the third time. If the variable
names a folder, a file ``output.received`` with the text ``kill@3`` arms the point for all processes together. Actions:
``kill``, ``stop`` (SIGSTOP), ``raise``, ``sleep:<seconds>``, ``meet:<file>`` (wait until the file exists).
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from itertools import count
from pathlib import Path


class FailpointError(Exception):
    """Raised by a failpoint that is set to ``raise``."""


class _ProcessFailpoint:
    """A failpoint that an environment variable activates in one process."""

    def __init__(self, spec: str) -> None:
        self._name, _, order = spec.partition("=")
        self._action, _, at = order.partition("@")
        self._left = int(at or 1)
        self._lock = threading.Lock()

    def next_action(self, name: str) -> str:
        """Count a pass of the failpoint ``name``. Return the action to carry out, or an empty string."""
        if name != self._name:
            return ""
        with self._lock:
            self._left -= 1
            return self._action if self._left == 0 else ""


class _FolderFailpoints:
    """Failpoints that files in a folder activate. Passes are counted over all processes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def next_action(self, name: str) -> str:
        try:
            action, _, at = (self._folder / name).read_text().partition("@")
        except FileNotFoundError:
            return ""
        if not action:  # the test has opened the file and has not written it yet
            return ""
        return action if self._count_pass(name) == int(at or 1) else ""

    def _count_pass(self, name: str) -> int:
        for number in count(1):
            try:
                with (self._folder / f"{name}.{number}").open("x") as mark:
                    mark.write(str(os.getpid()))
            except FileExistsError:
                continue
            return number
        raise AssertionError("unreachable")


def _read_failpoint(spec: str) -> _ProcessFailpoint | _FolderFailpoints | None:
    if not spec:
        return None
    return _FolderFailpoints(Path(spec)) if spec.startswith("/") else _ProcessFailpoint(spec)


_points = _read_failpoint(os.environ.get("HELIX_FAILPOINT", ""))


def pass_failpoint(name: str) -> None:
    """Carry out the action that a test has set for the failpoint ``name``, such as killing the process.

    Raises ``FailpointError`` if the action is ``raise``, ``ValueError`` if the action is unknown.
    """
    if _points is not None and (action := _points.next_action(name)):
        _run_action(name, action)


async def pass_failpoint_async(name: str) -> None:
    """Carry out the action that a test has set for the failpoint ``name`` without blocking the event loop."""
    if _points is None or not (action := _points.next_action(name)):
        return
    if action.partition(":")[0] in {"sleep", "meet"}:
        await asyncio.to_thread(_run_action, name, action)
    else:
        _run_action(name, action)


def _run_action(name: str, action: str) -> None:
    verb, _, argument = action.partition(":")
    match verb:
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "stop":
            # Signal this thread, because another thread would receive SIGSTOP later.
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
        case "raise":
            raise FailpointError(name)
        case "sleep":
            time.sleep(float(argument))
        case "meet":
            while not Path(argument).exists():
                time.sleep(0.01)
        case _:
            raise ValueError(f"{name}: no such action of a failpoint: {action}")
