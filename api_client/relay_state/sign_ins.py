"""Which browser is signed in with which key: one small string per browser, with a time to live."""

from __future__ import annotations

import asyncio

from api_client.contract.errors import StoreUnavailable
from api_client.contract.keys import Keys
from api_client.store import Store

#: How often a sign-in is written before it is given up, and the wait between, in seconds.
_TRIES, _WAIT_SECONDS = 3, 0.3


class SignIns:
    """The signed-in browsers. Each method raises ``StoreUnavailable`` when the store does not answer."""

    def __init__(self, store: Store) -> None:
        self._redis, self._ask = store.redis, store.ask
        self._keys = Keys(store.namespace)

    async def remember(self, token: str, key_hash: str, *, keep_seconds: int) -> None:
        """The browser that has ``token`` is signed in with the key that ``key_hash`` is the hash of.

        Somebody waits for this once a day, and would have to type again: a busy store is asked for longer than usual.
        """
        for left in range(_TRIES - 1, -1, -1):
            try:
                await self._ask(self._redis.set(self._keys.browser(token), key_hash, ex=keep_seconds))
            except StoreUnavailable as error:
                if error.refusal or not left:
                    raise
                await asyncio.sleep(_WAIT_SECONDS)
            else:
                return

    async def key_of(self, token: str) -> str:
        """The hash of the key a browser is signed in with; '' for none."""
        found = await self._ask(self._redis.get(self._keys.browser(token)))
        return found.decode() if found else ""

    async def forget(self, token: str) -> None:
        """Sign a browser out."""
        await self._ask(self._redis.delete(self._keys.browser(token)))
