"""When leases may be taken: not before every holder could beat again for a whole lease (DESIGN 3).

The store holds the time since which it has been calm, so that a reaper that has just started need not wait again:
where workers restart more often than once per lease, nobody would ever take the turns of the others. ``Clocks`` is
the part that only a reaper itself can see, and pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from redis.asyncio import Redis

from api_client.contract.keys import Keys
from api_client.contract.settings import Settings

_CALM_LUA = Path(__file__).with_name("lua") / "calm.lua"
#: A clock that moves this much against ours between two looks has jumped, in seconds.
_JUMP_SECONDS = 1.0


class Clocks:
    """The store's clock beside ours, at each look. Both in seconds.

    ``jumped_back`` is True when the store's clock was set back since the look before: due turns then seem far away.
    """

    def __init__(self, lease_seconds: float) -> None:
        self._lease = lease_seconds
        self._last: tuple[float, float] | None = None
        self._steady_since = float("-inf")
        self.jumped_back = False

    def rest(self) -> None:
        """Nothing is looked after for a while: what the clock does meanwhile concerns nobody."""
        self._last = None
        self.jumped_back = False

    def look(self, monotonic: float, server: float) -> bool:
        """One look at the store that it answered; True when its clock did not jump within the last lease."""
        if self._last is not None:
            drift = (server - self._last[1]) - (monotonic - self._last[0])
            self.jumped_back = drift < -_JUMP_SECONDS
            if abs(drift) > _JUMP_SECONDS:
                self._steady_since = monotonic
        self._last = (monotonic, server)
        return monotonic - self._steady_since >= self._lease


@dataclass(frozen=True, slots=True)
class ClockReading:
    """The store's clock, and for how long it has been calm, in seconds.

    ``for_all``: this reaper looks, and the others need not. ``set_back``: the clock was set back since the last look.
    """

    now: float
    calm: float
    for_all: bool
    set_back: bool


class Calm:
    """Tells the store that a reaper looks, and asks it for how long reapers have looked without a gap."""

    def __init__(self, settings: Settings, store: Redis, worker: str) -> None:
        self._key = Keys(settings.namespace).reapers
        longest_gap = max(3 * settings.reap_seconds, settings.lease_seconds / 2)
        # Another one takes over before the gap is too long: it asks every ``reap_seconds``.
        goes_on = 1.5 * settings.reap_seconds
        self._args: list[str | int] = [int(longest_gap * 1000), worker, int(goes_on * 1000)]
        self._script = store.register_script(_CALM_LUA.read_text())

    async def look(self) -> ClockReading:
        """Look, if it is this reaper that looks for all.

        Raises ``RedisError``: the store does not answer, or takes no writes: what holders cannot do is not their fault.
        """
        now, since, for_all, set_back = map(int, await self._script(keys=[self._key], args=self._args))
        return ClockReading(now / 1000, (now - since) / 1000, bool(for_all), bool(set_back))
