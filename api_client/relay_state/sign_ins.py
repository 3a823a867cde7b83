"""Remembers which browser is signed in with which API key."""

from __future__ import annotations

import asyncio

from api_client.contract.errors import StoreUnavailable
from api_client.contract.keys import Keys
from api_client.store import Store

_TRIES, _WAIT_SECONDS = 3, 0.3


class SignIns:
    """Stores which browsers are signed in. Methods raise ``StoreUnavailable``."""

    def __init__(self, store: Store) -> None:
        self._redis, self._ask = store.redis, store.await_reply
        self._keys = Keys(store.namespace)

    async def sign_in(self, token: str, key_hash: str, *, keep_seconds: int) -> None:
        """Sign in a browser for ``keep_seconds`` by storing an API key's hash for the browser's token.

        A busy store is retried, because the user would have to type the key again.
        """
        for left in range(_TRIES - 1, -1, -1):
            try:
                await self._ask(self._redis.set(self._keys.browser_key(token), key_hash, ex=keep_seconds))
            except StoreUnavailable as error:
                if error.refusal or not left:
                    raise
                await asyncio.sleep(_WAIT_SECONDS)
            else:
                return

    async def find_key_hash(self, token: str) -> str:
        """Return the hash of the API key that a browser signed in with, or an empty string."""
        found = await self._ask(self._redis.get(self._keys.browser_key(token)))
        return found.decode() if found else ""

    async def sign_out(self, token: str) -> None:
        await self._ask(self._redis.delete(self._keys.browser_key(token)))
