"""Liveness probe of a process, which runs in a thread."""

from __future__ import annotations

import threading
from collections.abc import Callable


class LivenessProbe:
    """Checks regularly from a thread whether a process still answers; after ``misses`` failed checks it counts as lost.

    ``answers`` does one check and must return within seconds.
    """

    def __init__(self, answers: Callable[[], bool], every_seconds: float, misses: int) -> None:
        self._answers = answers
        self._every_seconds = every_seconds
        self._misses = misses
        self._lost = threading.Event()
        self._stopped = threading.Event()
        threading.Thread(target=self._probe_process, name="liveness", daemon=True).start()

    @property
    def lost(self) -> bool:
        return self._lost.is_set()

    def stop(self) -> None:
        """Stop checking the process, because it is about to be stopped."""
        self._stopped.set()

    def _probe_process(self) -> None:
        missed = 0
        while not self._stopped.wait(self._every_seconds):
            missed = 0 if self._answers() else missed + 1
            if missed >= self._misses:
                self._lost.set()
                return
