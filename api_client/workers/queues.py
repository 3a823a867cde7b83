"""Celery's queues, as the broker keeps them: lists, named like the queue."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from api_client.contract.settings import Settings
from api_client.contract.tasks import ALL_QUEUES, celery_settings
from api_client.store import Store, open_store

if TYPE_CHECKING:
    from redis.asyncio import Redis


async def waiting_messages(store: Store) -> dict[str, int]:
    """How many messages that nobody took yet wait in each queue of the broker, which may be the store too.

    Raises:
        RedisError: the broker does not answer.
    """
    settings = store.settings
    if settings.broker_url == settings.store_url:
        return await _lengths(store.redis, settings)
    async with open_store(replace(settings, store_url=settings.broker_url)) as broker:
        return await _lengths(broker, settings)


async def _lengths(broker: Redis, settings: Settings) -> dict[str, int]:
    prefix = celery_settings(settings)["broker_transport_options"]["global_keyprefix"]
    names = sorted(ALL_QUEUES)
    pipe = broker.pipeline(transaction=False)
    for name in names:
        pipe.llen(prefix + name)
    return dict(zip(names, await pipe.execute(), strict=True))
