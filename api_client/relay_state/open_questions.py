"""Remembers which turn answers an open question, so that a repeated request joins that turn."""

from __future__ import annotations

from api_client.contract.keys import Keys
from api_client.store import Store
from api_client.store.commands import REMOVE_OWN


class OpenQuestions:
    """Remembers which turn answers a chat question, so that repeated requests join the same turn."""

    def __init__(self, store: Store) -> None:
        self._redis, self._ask = store.redis, store.await_reply
        self._keys = Keys(store.namespace)
        self._forget = store.redis.register_script(REMOVE_OWN)

    async def find_turn(self, owner: str, question: str) -> str:
        """Return the turn that answers the question, or an empty string if there is none."""
        found = await self._ask(self._redis.get(self._keys.asked(owner, question)))
        return found.decode() if found else ""

    async def claim_question(self, owner: str, question: str, turn_id: str, *, keep_seconds: float) -> str:
        """Return the turn that already answers the question, or register ``turn_id`` and return it."""
        key, life = self._keys.asked(owner, question), int(keep_seconds * 1000)
        earlier = await self._ask(self._redis.set(key, turn_id, nx=True, get=True, px=life))
        return earlier.decode() if earlier else turn_id

    async def replace_turn(self, owner: str, question: str, turn_id: str, *, keep_seconds: float) -> None:
        """Register ``turn_id`` as the turn that answers the question, replacing an earlier turn."""
        await self._ask(self._redis.set(self._keys.asked(owner, question), turn_id, px=int(keep_seconds * 1000)))

    async def forget_question(self, owner: str, question: str, turn_id: str) -> None:
        """Delete the entry of a question that ``turn_id`` has answered, unless another turn now answers it."""
        await self._ask(self._forget(keys=[self._keys.asked(owner, question)], args=[turn_id]))
