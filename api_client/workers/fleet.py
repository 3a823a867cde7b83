"""Which workers are there, what they are ordered to do, and how many turns have not ended."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

from api_client.contract.errors import BadRequest
from api_client.contract.keys import Keys
from api_client.contract.values.worker_order import WorkerOrder
from api_client.store import Store


async def workers(store: Store) -> list[dict[str, Any]]:
    """What each worker process last reported: name, host, queues, slots, free, deaf, at.

    ``slots`` and ``free`` are of agents, ``check_slots`` and ``check_free`` of answers that are judged.

    Raises:
        StoreUnavailable: the store does not answer.
    """
    return await _told(store, Keys(store.namespace).workers)


async def ended(store: Store) -> list[dict[str, Any]]:
    """What each worker process that ended in peace within a day last reported; ``at`` is its end. Raises as above."""
    return await _told(store, Keys(store.namespace).ended_workers)


async def _told(store: Store, key: str) -> list[dict[str, Any]]:
    told = []
    for name, text in sorted((await store.ask(store.redis.hgetall(key))).items()):
        with suppress(ValueError):
            told.append({"name": name.decode(), **json.loads(text)})
    return told


async def unfinished(store: Store) -> int:
    """How many turns have not ended, those that wait for a person included.

    Raises:
        StoreUnavailable: the store does not answer.
    """
    return sum([await store.ask(store.redis.zcard(keys.due)) for keys in store.shards])


async def order(store: Store, name: str, what: WorkerOrder) -> str:
    """Order a worker process, named by the beginning of its name, to do something; it obeys with its next heartbeat.

    Twice makes no difference. Returns its whole name.

    Raises:
        BadRequest: no worker's name begins like this, or several do. StoreUnavailable: the store does not answer.
    """
    known = [each["name"] for each in await workers(store)]
    meant = [each for each in known if each == name] or [each for each in known if name and each.startswith(name)]
    if len(meant) != 1:
        why = f"several workers begin with {name!r}" if meant else f"no worker {name!r}"
        raise BadRequest(f"{why}; there are: {', '.join(meant or known) or 'none'}", param="name")
    keys = Keys(store.namespace)
    ordered = await store.ask(store.redis.hkeys(keys.orders))
    if left := [raw for raw in ordered if raw.decode() not in known]:  # of workers that are gone for good
        await store.ask(store.redis.hdel(keys.orders, *left))
    if what is WorkerOrder.RESUME:
        await store.ask(store.redis.hdel(keys.orders, meant[0]))
    else:
        await store.ask(store.redis.hset(keys.orders, meant[0], what.value))
    return str(meant[0])
