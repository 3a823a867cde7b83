"""Decides when expired leases may be taken: after every holder had a whole lease's time to renew.

The store remembers since when reapers have looked without a gap, so that a restarted reaper need not wait again.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from redis.asyncio import Redis

from api_client.contract.keys import Keys
from api_client.contract.settings import Settings

_GRACE_PERIOD_LUA = Path(__file__).with_name("lua") / "grace_period.lua"
#: A difference between the clocks' advances that counts as a jump, in seconds.
_JUMP_SECONDS = 1.0


class ClockComparison:
    """Compares the store's clock with the local clock repeatedly, to detect jumps of the store's clock."""

    def __init__(self, lease_seconds: float) -> None:
        self._lease = lease_seconds
        self._last: tuple[float, float] | None = None
        self._steady_since = float("-inf")
        self.jumped_back = False

    def forget_last(self) -> None:
        """Forget the last reading of both clocks, so that clock changes during idle times are ignored."""
        self._last = None
        self.jumped_back = False

    def compare_clocks(self, monotonic: float, server: float) -> bool:
        """Compare both clocks. Return True if the store's clock did not jump within the last lease duration."""
        if self._last is not None:
            drift = (server - self._last[1]) - (monotonic - self._last[0])
            self.jumped_back = drift < -_JUMP_SECONDS
            if abs(drift) > _JUMP_SECONDS:
                self._steady_since = monotonic
        self._last = (monotonic, server)
        return monotonic - self._steady_since >= self._lease


@dataclass(frozen=True, slots=True)
class ClockReading:
    """The store's time, and for how many seconds reapers have looked for expired leases without a gap.

    ``for_all`` means that this reaper reaps on behalf of all; ``set_back`` that the clock was set back.
    """

    now: float
    watched_seconds: float
    for_all: bool
    set_back: bool


class GracePeriod:
    """Measures for how long reapers have looked for expired leases without a gap, as recorded in the store."""

    def __init__(self, settings: Settings, store: Redis, worker: str) -> None:
        self._key = Keys(settings.namespace).reapers
        longest_gap = max(3 * settings.reap_seconds, settings.lease_seconds / 2)
        goes_on = 1.5 * settings.reap_seconds
        self._args: list[str | int] = [int(longest_gap * 1000), worker, int(goes_on * 1000)]
        self._script = store.register_script(_GRACE_PERIOD_LUA.read_text(encoding="utf-8"))

    async def register_look(self) -> ClockReading:
        """Record that this reaper looks for expired leases now. Return the store's time and the time without a gap.

        Raises ``RedisError``.
        """
        now, since, for_all, set_back = map(int, await self._script(keys=[self._key], args=self._args))
        return ClockReading(now / 1000, (now - since) / 1000, bool(for_all), bool(set_back))
