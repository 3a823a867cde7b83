"""Wrong keys at the sign-in, by address: after ten in a minute there is one every six seconds.

What is remembered is bounded. Addresses that find no room share one place, and so slow each other down.
"""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Callable

_MOST_AT_ONCE, _SECONDS_EACH = 10, 6.0
_MOST_ADDRESSES = 1_024
_OTHERS = ""


class Guesses:
    """The wrong keys of all addresses; ``clock`` in seconds. IPv6 addresses count by their network of 64 bits."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._full: dict[str, float] = {}  # when an address may again be wrong as often as at first

    def wait(self, address: str) -> float:
        """Seconds until this address may try again; 0: now."""
        ahead = self._full.get(self._place(address), 0.0) - self._clock()
        return max(0.0, ahead + _SECONDS_EACH - _MOST_AT_ONCE * _SECONDS_EACH)

    def wrong(self, address: str) -> None:
        """Count a wrong key of this address."""
        place, now = self._place(address), self._clock()
        self._full[place] = max(self._full.get(place, now), now) + _SECONDS_EACH

    def _place(self, address: str) -> str:
        place = _network(address)
        if place in self._full:
            return place
        if len(self._full) >= _MOST_ADDRESSES:
            now = self._clock()
            self._full = {known: full for known, full in self._full.items() if full > now}
        return place if len(self._full) < _MOST_ADDRESSES else _OTHERS


def _network(address: str) -> str:
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address[:64]
    return str(ipaddress.ip_network((found, 64), strict=False)) if found.version == 6 else str(found)
