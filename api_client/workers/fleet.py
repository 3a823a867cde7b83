"""Which workers are there, and which work waits for them: for ``turns doctor``, and for those who scale workers."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

from api_client.contract.keys import Keys
from api_client.contract.tasks import CHECK_QUEUE, PREFERRED_QUEUE, RUN_QUEUE
from api_client.store import Store
from api_client.workers.queues import waiting_messages


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


async def backlog(store: Store, overdue_seconds: float) -> dict[str, int]:
    """Waiting work: messages by queue (``run``, ``check``), unfinished turns, those long overdue, dead letters.

    Raises:
        StoreUnavailable: the store, or the broker, does not answer.
    """
    clock = await store.ask(store.redis.time())
    late = int((clock[0] - overdue_seconds) * 1000)
    waiting = await store.ask(waiting_messages(store))
    found = {
        "run": waiting[RUN_QUEUE] + waiting[PREFERRED_QUEUE],
        "check": waiting[CHECK_QUEUE],
        "overdue": 0,
        "dead": 0,
    }
    found["unfinished"] = await unfinished(store)
    for keys in store.shards:
        found["overdue"] += await store.ask(store.redis.zcount(keys.due, "-inf", late))
        found["dead"] += await store.ask(store.redis.zcard(keys.dead))
    return found
