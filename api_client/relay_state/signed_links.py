"""Links that give access to one thing for a limited time, signed with a key in the store."""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
import time
from collections.abc import Sequence

from api_client.contract.keys import Keys
from api_client.store import Store

_KEY_BYTES = 32


class SignedLinks:
    """Signs links and verifies signatures. Methods raise ``StoreUnavailable``."""

    def __init__(self, store: Store) -> None:
        self._redis, self._ask = store.redis, store.await_reply
        self._name = Keys(store.namespace).link_key

    async def sign_link(self, *what: str, until: int) -> str:
        """Return the signature for a link to this target that expires at ``until`` (seconds since the epoch)."""
        return _compute_signature(await self._load_key(), what, until)

    async def is_valid(self, signature: str, *what: str, until: int) -> bool:
        """Return True if the signature belongs to a link to this target that has not expired."""
        return await self.is_authentic(signature, *what, until=until) and time.time() < until

    async def is_authentic(self, signature: str, *what: str, until: int) -> bool:
        """Return True if the signature belongs to a link to this target, even if the link has expired."""
        right = _compute_signature(await self._load_key(), what, until)
        return hmac.compare_digest(right.encode(), signature.encode("utf-8", "surrogatepass"))

    async def _load_key(self) -> bytes:
        if known := await self._ask(self._redis.get(self._name)):  # also while the store accepts no writes
            return bytes(known)
        fresh = secrets.token_bytes(_KEY_BYTES)
        return await self._ask(self._redis.set(self._name, fresh, nx=True, get=True)) or fresh


def _compute_signature(key: bytes, what: Sequence[str], until: int) -> str:
    said = "\0".join([*what, str(until)]).encode("utf-8", "surrogatepass")
    return base64.urlsafe_b64encode(hmac.new(key, said, hashlib.sha256).digest()).rstrip(b"=").decode()
