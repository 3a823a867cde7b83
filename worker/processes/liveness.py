"""Liveness of a program: it is asked again and again, by its own thread."""

from __future__ import annotations

import threading
from collections.abc import Callable


class LivenessProbe:
    """Asks one process until ``stop``; ``lost`` is set once it has missed ``misses`` questions in a row.

    ``answers`` asks once, and must come back within seconds; ``every_seconds`` pass until the next question.
    """

    def __init__(self, answers: Callable[[], bool], every_seconds: float, misses: int) -> None:
        self._answers = answers
        self._every_seconds = every_seconds
        self._misses = misses
        self._lost = threading.Event()
        self._stopped = threading.Event()
        threading.Thread(target=self._ask, name="liveness", daemon=True).start()

    @property
    def lost(self) -> bool:
        """True when it answers no longer."""
        return self._lost.is_set()

    def stop(self) -> None:
        """Ask no more: the process ends."""
        self._stopped.set()

    def _ask(self) -> None:
        missed = 0
        while not self._stopped.wait(self._every_seconds):
            missed = 0 if self._answers() else missed + 1
            if missed >= self._misses:
                self._lost.set()
                return
