"""How many spares are wanted of each kind: as many as new sessions came lately. Pure."""

from __future__ import annotations

from collections import deque

from worker.runners.agent_life import Limits

#: After this many failures in a row none is tried for as long as one would have rested.
_MOST_FAILURES = 2


class Demand:
    """What came, and what failed, by kind (``Prepares.spare_part``). Times by ``time.monotonic()``. Under a lock."""

    def __init__(self) -> None:
        self._came: dict[str, deque[float]] = {}
        self._failures: dict[str, list[float]] = {}

    def came(self, part: str, now: float) -> None:
        """A new session came that could use a spare of this kind."""
        self._came.setdefault(part, deque(maxlen=64)).append(now)

    def foreseen(self, part: str, at: float) -> None:
        """A new session came to another worker: the next one may come here."""
        if not (times := self._came.get(part)) or times[-1] < at:
            self._came[part] = deque((at,), maxlen=64)

    def served(self, part: str) -> None:
        """A spare was claimed: they work."""
        self._failures.pop(part, None)

    def failed(self, part: str, now: float) -> None:
        """A spare refused a session, or ended before it could be asked: another version of the agent, perhaps."""
        self._failures.setdefault(part, []).append(now)

    def wanted(self, part: str, limits: Limits, now: float) -> int:
        """Return how many are to be there."""
        since = now - limits.seconds
        failures = self._failures.get(part, [])
        if len(failures) >= _MOST_FAILURES and failures[-1] > since:
            return 0
        self._came = {kind: times for kind, times in self._came.items() if times[-1] > since}
        return min(limits.spares, sum(at > since for at in self._came.get(part, ())))
