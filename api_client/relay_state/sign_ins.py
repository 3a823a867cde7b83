"""Remembers which browser is signed in, and as whom."""

from __future__ import annotations

import asyncio

from api_client.contract.errors import StoreUnavailable
from api_client.contract.keys import Keys
from api_client.store import Store

_TRIES, _WAIT_SECONDS = 3, 0.3


class SignIns:
    """Stores who is signed in with each browser: the hash of an API key, or the result of ``SignedInPerson.to_text``.

    Methods raise ``StoreUnavailable``.
    """

    def __init__(self, store: Store) -> None:
        self._redis, self._ask = store.redis, store.await_reply
        self._keys = Keys(store.namespace)

    async def sign_in(self, token: str, who: str, *, keep_seconds: int) -> None:
        """Sign in a browser for ``keep_seconds`` by storing ``who`` for the browser's token.

        A busy store is retried, because the user would have to sign in again.
        """
        for left in range(_TRIES - 1, -1, -1):
            try:
                await self._ask(self._redis.set(self._keys.browser_key(token), who, ex=keep_seconds))
            except StoreUnavailable as error:
                if error.refusal or not left:
                    raise
                await asyncio.sleep(_WAIT_SECONDS)
            else:
                return

    async def find_signed_in(self, token: str) -> str:
        """Return who signed in with a browser, or an empty string."""
        found = await self._ask(self._redis.get(self._keys.browser_key(token)))
        return found.decode() if found else ""

    async def sign_out(self, token: str) -> None:
        await self._ask(self._redis.delete(self._keys.browser_key(token)))
