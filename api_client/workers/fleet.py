"""Which workers are there, and how many turns have not ended."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

from api_client.contract.keys import Keys
from api_client.store import Store


async def workers(store: Store) -> list[dict[str, Any]]:
    """What each worker process last reported: name, host, queues, slots, free, deaf, at.

    ``slots`` and ``free`` are of agents, ``check_slots`` and ``check_free`` of answers that are judged.

    Raises:
        StoreUnavailable: the store does not answer.
    """
    told = []
    for name, text in sorted((await store.ask(store.redis.hgetall(Keys(store.namespace).workers))).items()):
        with suppress(ValueError):
            told.append({"name": name.decode(), **json.loads(text)})
    return told


async def unfinished(store: Store) -> int:
    """How many turns have not ended, those that wait for a person included.

    Raises:
        StoreUnavailable: the store does not answer.
    """
    return sum([await store.ask(store.redis.zcard(keys.due)) for keys in store.shards])
