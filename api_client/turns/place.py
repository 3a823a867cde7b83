"""Where a turn that waits stands: behind turns of its session, or with others for an agent. The session's turns."""

from __future__ import annotations

from dataclasses import dataclass

from api_client.contract.keys import keys_of
from api_client.contract.tasks import RUN_QUEUE
from api_client.store import Store
from api_client.workers.queues import waiting_messages


@dataclass(frozen=True, slots=True)
class Place:
    """``before``: unfinished turns of its session before it. ``waiting``: turns that wait for an agent, about."""

    before: int
    waiting: int


async def read_place(store: Store, turn_id: str, session_id: str) -> Place:
    """Look at the session's list and, for its head, at the queue of agents.

    Raises:
        StoreUnavailable: the store does not answer.
    """
    keys = keys_of(store.namespace, turn_id)
    found = await store.ask(store.redis.lpos(keys.session(session_id), turn_id))
    if found:
        return Place(int(found), 0)
    lengths = await store.ask(waiting_messages(store))
    return Place(0, lengths[RUN_QUEUE])


async def unfinished_of(store: Store, turn_id: str, session_id: str) -> list[str]:
    """The ids of a session's unfinished turns, in order. ``turn_id``: any turn of it, also one that is not stored.

    Raises:
        StoreUnavailable: the store does not answer.
    """
    key = keys_of(store.namespace, turn_id).session(session_id)
    return [found.decode() for found in await store.ask(store.redis.lrange(key, 0, -1))]
