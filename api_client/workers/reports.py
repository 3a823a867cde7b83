"""What worker processes last reported of themselves, read from the store."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

from api_client.contract.keys import Keys
from api_client.store import Store


async def reported_workers(store: Store) -> list[dict[str, Any]]:
    """What each worker process last reported: name, host, queues, slots, free, deaf, at.

    ``slots`` and ``free`` are of agents, ``check_slots`` and ``check_free`` of answers that are judged.

    Raises:
        StoreUnavailable: the store does not answer.
    """
    return await _read(store, Keys(store.namespace).workers)


async def ended_workers(store: Store) -> list[dict[str, Any]]:
    """The last report of each worker process that ended in peace within a day; ``at`` is its end. Raises as above."""
    return await _read(store, Keys(store.namespace).ended_workers)


async def _read(store: Store, key: str) -> list[dict[str, Any]]:
    found = []
    for name, text in sorted((await store.ask(store.redis.hgetall(key))).items()):
        with suppress(ValueError):
            found.append({"name": name.decode(), **json.loads(text)})
    return found
