"""Durations of periodic work, such as lease renewals, to detect slow rounds before a lease is lost."""

from __future__ import annotations

import threading
from collections import deque

#: A slow round takes this share of a lease: one second at the default lease of 6 s.
SLOW_SHARE = 1 / 6
#: Seconds for which the worst round is shown.
_SHOWN_SECONDS = 60.0


class Rounds:
    """Measures how long the rounds of periodic work take, to detect rounds slower than ``limit``. Thread-safe."""

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._rounds: deque[tuple[float, float]] = deque()
        self._lock = threading.Lock()
        self.slow = False

    def record_round(self, ended_at: float, seconds: float) -> bool:
        """Record a round that took ``seconds`` and ended at ``ended_at`` (``time.monotonic()``).

        Return True if this round is slow and the last round was not.
        """
        with self._lock:
            self._rounds.append((ended_at, seconds))
            self._drop_old(ended_at)
        was, self.slow = self.slow, seconds > self._limit
        return self.slow and not was

    def find_worst(self, now: float) -> float:
        """Return how many seconds the slowest round of the work took in the last minute, or 0 if there was none."""
        with self._lock:
            self._drop_old(now)
            return max((seconds for _, seconds in self._rounds), default=0.0)

    def _drop_old(self, now: float) -> None:
        while self._rounds and self._rounds[0][0] < now - _SHOWN_SECONDS:
            self._rounds.popleft()
