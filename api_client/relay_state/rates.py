"""How many turns somebody may hand in: a bucket that empties by one a turn and fills again evenly.

It lives in the store, so that several relays share it: one number, the time at which the bucket will be full again
(the generic cell rate algorithm).
"""

from __future__ import annotations

from api_client.contract.keys import Keys
from api_client.store import Store

#: KEYS[1] when the bucket is full again, in ms
#: ARGV[1] what one turn costs, in ms  ARGV[2] what the bucket holds, in ms
#: answers the ms to wait, 0 when the turn is let through
_TAKE = """
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local full = math.max(tonumber(redis.call('GET', KEYS[1]) or '0') or 0, now) + tonumber(ARGV[1])
local wait = full - now - tonumber(ARGV[2])
if wait > 0 then return math.ceil(wait) end
redis.call('SET', KEYS[1], string.format('%.0f', full), 'PX', string.format('%.0f', full - now))
return 0
"""
_MINUTE = 60_000


class Rates:
    """The buckets of all owners."""

    def __init__(self, store: Store) -> None:
        self._ask = store.ask
        self._keys = Keys(store.namespace)
        self._take = store.redis.register_script(_TAKE)

    async def take(self, owner: str, per_minute: int) -> float:
        """Count one turn of this owner; returns the seconds to wait when there were too many, else 0.

        Raises:
            StoreUnavailable: the store does not answer.
        """
        key = self._keys.rate(owner)
        waiting = await self._ask(self._take(keys=[key], args=[_MINUTE / per_minute, _MINUTE]))
        return int(waiting) / 1000
