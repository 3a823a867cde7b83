"""One idempotency key, one turn, also where sessions are in several shards.

``submit.lua`` looks a key up in the shard of its turn. With one shard that is all there is to do. With more, the same
key could come with a session of another shard, and make another turn there; so a key is first reserved for a turn id in
a shard that follows from the key alone. A client that dies between that and the submit leaves a reservation: a repeat
submits the turn it names. A turn that is refused because its session is busy keeps its key, too.
"""

from __future__ import annotations

from api_client.contract.errors import IdempotencyConflict
from api_client.contract.keys import Keys, shard_for
from api_client.store import Store


class Reservations:
    """Reserved idempotency keys."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._redis, self._ask = store.redis, store.ask

    async def reserve(self, owner: str, key: str, turn_id: str, body: str, *, keep_ms: int) -> str:
        """The turn the key represents: ``turn_id`` from now on, or the one it was reserved for with the same body.

        ``body`` is the request's hash, ``keep_ms`` how long the reservation lives.

        Raises:
            IdempotencyConflict: the key was used with another body. StoreUnavailable: the store does not answer.
        """
        shard = shard_for(f"{owner}\0{key}", self._store.settings.shards)
        name = Keys(self._store.namespace, shard).reserved(owner, key)
        found = await self._ask(self._redis.set(name, f"{turn_id} {body}", nx=True, get=True, px=keep_ms))
        if not found:
            return turn_id
        earlier, _, known = found.decode().partition(" ")
        if known != body:
            raise IdempotencyConflict(key)
        return str(earlier)
