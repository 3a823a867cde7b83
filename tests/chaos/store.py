"""Connections of the laboratory to the store, which may hang at any moment, also while a connection is closed."""

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import redis.asyncio as aioredis
from redis.exceptions import RedisError


async def close(store: aioredis.Redis) -> None:
    """Close the connections. What a hanging store says to it changes nothing about what was measured."""
    with contextlib.suppress(RedisError, OSError):
        await store.aclose()


@contextlib.asynccontextmanager
async def connected(url: str, **options: Any) -> AsyncIterator[aioredis.Redis]:
    """A connection for a while. ``options`` as for ``redis.asyncio.Redis.from_url``."""
    store = aioredis.Redis.from_url(url, **options)
    try:
        yield store
    finally:
        await close(store)
