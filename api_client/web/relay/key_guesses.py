"""Limits wrong API keys by client address: ten in a minute, then one every six seconds."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from api_client.web.errors import ApiError
from api_client.web.relay.client_networks import network_of

_MOST_AT_ONCE, _SECONDS_EACH = 10, 6.0
_MOST_ADDRESSES, _MOST_KNOWN = 1_024, 8_192
_OTHERS = ""


class KeyGuesses:
    """Counts wrong API keys by client address, and limits how many a client may try."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._full_allowance_at: dict[str, float] = {}  # when the address's full allowance is back
        self._known_keys: dict[tuple[str, str], None] = {}  # addresses, and hashes of keys that they have sent

    def require_attempt(self, address: str, key_hash: str = "") -> None:
        """Raise ``ApiError`` (429) if the address has sent too many wrong keys. A repeated key does not count."""
        if key_hash and (network_of(address), key_hash) in self._known_keys:
            return
        if seconds := math.ceil(self.seconds_to_wait(address)):
            message = f"too many wrong keys came from here; try again in {seconds} s"
            raise ApiError(429, message, code="too_many_guesses", headers={"retry-after": str(seconds)})

    def note_attempt(self, address: str, key_hash: str, *, wrong: bool) -> None:
        """Record that an address tried an API key. The same wrong key counts once."""
        known = (network_of(address), key_hash)
        if wrong and known not in self._known_keys:
            self.count_wrong(address)
        self._known_keys.pop(known, None)
        self._known_keys[known] = None
        if len(self._known_keys) > _MOST_KNOWN:
            del self._known_keys[next(iter(self._known_keys))]

    def seconds_to_wait(self, address: str) -> float:
        """Return how many seconds an address must wait before it may try another key."""
        ahead = self._full_allowance_at.get(self._find_place(address), 0.0) - self._clock()
        return max(0.0, ahead + _SECONDS_EACH - _MOST_AT_ONCE * _SECONDS_EACH)

    def count_wrong(self, address: str) -> None:
        place, now = self._find_place(address), self._clock()
        self._full_allowance_at[place] = max(self._full_allowance_at.get(place, now), now) + _SECONDS_EACH

    def _find_place(self, address: str) -> str:
        place = network_of(address)
        if place in self._full_allowance_at:
            return place
        if len(self._full_allowance_at) >= _MOST_ADDRESSES:
            now = self._clock()
            self._full_allowance_at = {known: full for known, full in self._full_allowance_at.items() if full > now}
        return place if len(self._full_allowance_at) < _MOST_ADDRESSES else _OTHERS
