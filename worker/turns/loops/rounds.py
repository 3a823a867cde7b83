"""The time that a process takes for quick work, such as renewing its leases: noticed before it costs a turn."""

from __future__ import annotations

import threading
from collections import deque

#: A round is slow when it takes this part of a lease: at the default lease of 6 s, one second.
SLOW_SHARE = 1 / 6
#: The worst round of so long is shown, in seconds.
_SHOWN_SECONDS = 60.0


class Rounds:
    """The rounds of one process, each from when it was to begin to when it had ended, in seconds.

    ``limit``: a longer one is slow. For any thread.
    """

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._rounds: deque[tuple[float, float]] = deque()
        self._lock = threading.Lock()
        self.slow = False

    def add(self, ended_at: float, seconds: float) -> bool:
        """Note a round; True when with this one the rounds began to be slow. ``ended_at`` by ``time.monotonic()``."""
        with self._lock:
            self._rounds.append((ended_at, seconds))
            self._forget(ended_at)
        was, self.slow = self.slow, seconds > self._limit
        return self.slow and not was

    def worst(self, now: float) -> float:
        """The longest round of the last minute; 0 when there was none."""
        with self._lock:
            self._forget(now)
            return max((seconds for _, seconds in self._rounds), default=0.0)

    def _forget(self, now: float) -> None:
        while self._rounds and self._rounds[0][0] < now - _SHOWN_SECONDS:
            self._rounds.popleft()
