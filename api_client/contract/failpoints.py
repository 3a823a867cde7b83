"""Failpoints: places where a test makes this process die, freeze, raise or dawdle. Nothing happens unless one is armed.

``HELIX_FAILPOINT=B7=kill@3`` kills the process the third time it passes B7; ``stop`` freezes it (SIGSTOP), ``raise``
raises, ``sleep:2`` waits two seconds. With ``:/path`` at the end the point fires once over all processes that share the
path, so that the process that takes over is spared.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

#: The boundaries of the crash matrix: what has happened when a process passes each.
POINTS = {
    "B1": "submit: the turn is stored and announced, the caller not answered",
    "B2": "submit: the turn is stored, not announced",
    "B3": "task: Celery's message is taken, the turn not claimed",
    "B4": "run: the turn is claimed, the delivery has no folder",
    "B5": "run: the folder is made, no agent started",
    "B6": "run: the agent is started, nothing read from it",
    "B7": "run: in the middle of the agent's output",
    "B8": "run: the agent ended, its verdict not found",
    "B9": "validate: the answer is accepted, not published",
    "B10": "validate: the answer and .done are published, nothing committed",
    "B11": "run: the run is committed, its validation not announced",
    "B12": "validate: in the middle of validation",
    "B13": "any link: decided, not committed",
    "B14": "any link: the turn is finished, the session's next turn not announced",
    "B15": "relay: the turn's end is sent, [DONE] not",
    "B16": "reaper: the turn is taken back, not announced",
}


class FailpointError(Exception):
    """What an armed failpoint raises."""


class _Armed:
    """The one failpoint this process is armed with, as the environment names it."""

    def __init__(self, spec: str) -> None:
        spec, _, path = spec.partition(":/")
        self.name, _, action = spec.partition("=")
        self.action, _, at = action.partition("@")
        self.once = Path(f"/{path}") if path else None
        self._left = int(at or 1)
        self._lock = threading.Lock()

    def due(self, name: str) -> bool:
        """True the one time the point fires."""
        if name != self.name:
            return False
        with self._lock:
            self._left -= 1
            if self._left != 0:
                return False
        if self.once:
            try:
                self.once.touch(exist_ok=False)
            except FileExistsError:
                return False
        return True

    def fire(self) -> None:
        """Die, freeze, raise or wait."""
        if self.action == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif self.action == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        elif self.action.startswith("sleep:"):
            time.sleep(float(self.action.removeprefix("sleep:")))
        else:
            raise FailpointError(self.name)


_armed = _Armed(os.environ["HELIX_FAILPOINT"]) if os.environ.get("HELIX_FAILPOINT") else None


def reach(name: str) -> None:
    """Pass a failpoint.

    Raises:
        FailpointError: it is armed with ``raise``.
    """
    if _armed is not None and _armed.due(name):
        _armed.fire()
