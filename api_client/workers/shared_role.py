"""A role that one process of an installation holds at a time."""

from __future__ import annotations

import secrets

from api_client.store import Store
from api_client.store.commands import REMOVE_OWN

_RENEW = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('PEXPIRE', KEYS[1], ARGV[2]) end return 0"


class SharedRole:
    """Acquires, renews and releases a role. Without renewal it ends by itself. Methods raise ``StoreUnavailable``."""

    def __init__(self, store: Store, key: str, seconds: float) -> None:
        """Create a role that is not held yet. ``seconds`` is its lifetime without renewal, under the Redis ``key``."""
        self._store, self._key, self._ms, self._own = store, key, int(seconds * 1000), secrets.token_hex(8)
        self._renew, self._remove = map(store.redis.register_script, (_RENEW, REMOVE_OWN))

    async def acquire_role(self) -> bool:
        """Acquire or renew the role. Return False if another process holds it."""
        ask = self._store.await_reply
        return bool(
            await ask(self._store.redis.set(self._key, self._own, nx=True, px=self._ms))
            or await ask(self._renew(keys=[self._key], args=[self._own, self._ms]))
        )

    async def release_role(self) -> None:
        """Release the role if this process holds it, so that another process can acquire it at once."""
        await self._store.await_reply(self._remove(keys=[self._key], args=[self._own]))
