"""Estimates how many spare processes are wanted, from recent new sessions."""

from __future__ import annotations

from collections import deque

from worker.runners.warm.agent_lifecycle import WarmLimits

#: After this many failures in a row, no spare is started for a while.
_MOST_FAILURES = 2


class SpareDemand:
    """Counts new sessions and failures, to estimate how many spare agent processes should be ready.

    Times are by ``time.monotonic()``. Call the methods with a lock held.
    """

    def __init__(self) -> None:
        self._came: dict[str, deque[float]] = {}
        self._failures: dict[str, list[float]] = {}

    def record_session(self, part: str, now: float) -> None:
        """Record that a new session, which could have used a spare process of kind ``part``, began at ``now``."""
        self._came.setdefault(part, deque(maxlen=64)).append(now)

    def record_remote_session(self, part: str, at: float) -> None:
        """Record that a new session began on another worker, because the next one may come to this worker."""
        if not (times := self._came.get(part)) or times[-1] < at:
            self._came[part] = deque((at,), maxlen=64)

    def record_claim(self, part: str) -> None:
        """Record that a session took over a spare process of kind ``part``."""
        self._failures.pop(part, None)

    def record_failure(self, part: str, now: float) -> None:
        """Record that a spare process of kind ``part`` refused a session or ended early."""
        self._failures.setdefault(part, []).append(now)

    def count_wanted(self, part: str, limits: WarmLimits, now: float) -> int:
        """Return how many spare processes of kind ``part`` should be ready at ``now``."""
        since = now - limits.seconds
        failures = self._failures.get(part, [])
        if len(failures) >= _MOST_FAILURES and failures[-1] > since:
            return 0
        self._came = {kind: times for kind, times in self._came.items() if times[-1] > since}
        return min(limits.spares, sum(at > since for at in self._came.get(part, ())))
