"""Which workers are there, and what waits for them: for ``turns doctor``, and for whoever scales workers."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from api_client.contract.keys import Keys
from api_client.contract.settings import Settings
from api_client.contract.tasks import CHECK_QUEUE, RUN_QUEUE
from api_client.store import open_store

if TYPE_CHECKING:
    from redis.asyncio import Redis

Ask = Callable[[Awaitable[Any]], Awaitable[Any]]


async def workers(redis: Redis, settings: Settings, ask: Ask) -> list[dict[str, Any]]:
    """What each worker process last told of itself: name, host, queues, slots, free, deaf, at. Raises as ``ask``."""
    told = []
    for name, text in sorted((await ask(redis.hgetall(Keys(settings.namespace).workers))).items()):
        with suppress(ValueError):
            told.append({"name": name.decode(), **json.loads(text)})
    return told


async def backlog(redis: Redis, settings: Settings, ask: Ask, overdue_seconds: float) -> dict[str, int]:
    """What waits: messages by queue (``run``, ``check``), unfinished turns, those long overdue, dead letters."""
    clock = await ask(redis.time())
    late = int((clock[0] - overdue_seconds) * 1000)
    found = {"run": 0, "check": 0, "unfinished": 0, "overdue": 0, "dead": 0}
    for shard in range(settings.shards):
        keys = Keys(settings.namespace, shard)
        found["unfinished"] += await ask(redis.zcard(keys.due))
        found["overdue"] += await ask(redis.zcount(keys.due, "-inf", late))
        found["dead"] += await ask(redis.zcard(keys.dead))
    same = settings.broker_url == settings.store_url
    broker = redis if same else open_store(replace(settings, store_url=settings.broker_url))
    try:
        for name, queue in (("run", RUN_QUEUE), ("check", CHECK_QUEUE)):
            found[name] = int(await ask(broker.llen(f"{settings.namespace}:celery:{queue}")))
    finally:
        if not same:
            await broker.aclose()
    return found
