"""How long a process takes to renew its leases: measured, and alarmed long before a slow round costs a turn. Pure."""

from __future__ import annotations

from collections import deque

#: A round is slow when it takes this part of a lease: at the default lease of 6 s, one second.
SLOW_SHARE = 1 / 6
#: The worst round of so long is shown, in seconds.
_SHOWN_SECONDS = 60.0


class Rounds:
    """The rounds of one process, each from when it was to begin to when the store had confirmed it, in seconds.

    A round that the store did not confirm counts up to the moment that was known. Not for two threads at once.
    """

    def __init__(self, lease_seconds: float) -> None:
        self._limit = lease_seconds * SLOW_SHARE
        self._rounds: deque[tuple[float, float]] = deque()
        self.slow = False

    def add(self, ended_at: float, seconds: float) -> bool:
        """Note a round; True when with this one the rounds began to be slow. ``ended_at`` by ``time.monotonic()``."""
        self._rounds.append((ended_at, seconds))
        self._forget(ended_at)
        was, self.slow = self.slow, seconds > self._limit
        return self.slow and not was

    def worst(self, now: float) -> float:
        """The longest round of the last minute; 0 when there was none."""
        self._forget(now)
        return max((seconds for _, seconds in tuple(self._rounds)), default=0.0)

    def _forget(self, now: float) -> None:
        while self._rounds and self._rounds[0][0] < now - _SHOWN_SECONDS:
            self._rounds.popleft()
