"""Which turn answers a question, as long as its asker does not have the answer: a repeat then joins that turn.

One small string per question with a time to live. What makes two requests the same question is the caller's to say.
"""

from __future__ import annotations

from api_client.contract.keys import Keys
from api_client.store import Store
from api_client.store.commands import REMOVE_OWN


class OpenQuestions:
    """The questions that are being answered. Each method raises ``StoreUnavailable`` when the store does not answer."""

    def __init__(self, store: Store) -> None:
        self._redis, self._ask = store.redis, store.ask
        self._keys = Keys(store.namespace)
        self._forget = store.redis.register_script(REMOVE_OWN)

    async def claim(self, owner: str, question: str, turn_id: str, *, keep_seconds: float) -> str:
        """The turn that answers the question: the one of an earlier asking, else ``turn_id`` from now on."""
        key, life = self._keys.asked(owner, question), int(keep_seconds * 1000)
        earlier = await self._ask(self._redis.set(key, turn_id, nx=True, get=True, px=life))
        return earlier.decode() if earlier else turn_id

    async def replace(self, owner: str, question: str, turn_id: str, *, keep_seconds: float) -> None:
        """From now on ``turn_id`` answers the question."""
        await self._ask(self._redis.set(self._keys.asked(owner, question), turn_id, px=int(keep_seconds * 1000)))

    async def forget(self, owner: str, question: str, turn_id: str) -> None:
        """The asker has the answer: asking again is a new question. Nothing happens when another turn answers it."""
        await self._ask(self._forget(keys=[self._keys.asked(owner, question)], args=[turn_id]))
