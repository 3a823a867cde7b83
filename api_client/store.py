"""Opening the store for an event loop: time-outs that keep the promise made to callers."""

from __future__ import annotations

import asyncio
from typing import Any

import redis.asyncio as aioredis
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel
from redis.backoff import ExponentialBackoff

from api_client.contract.sentinels import Sentinels
from api_client.contract.settings import Settings, require_store

#: A store that is down must be told to the caller within two seconds; repeats are harmless, see ``TurnsClient.submit``.
_CONNECT_SECONDS, _ANSWER_SECONDS, _RESENDS = 0.8, 0.8, 1
#: Every reader of a turn holds one. The library's own limit (100) would be the number of streams a relay can serve.
_MOST_CONNECTIONS = 2**16


def open_store(settings: Settings) -> aioredis.Redis:
    """A connection pool to the store, or to the master that Sentinel names.

    Raises:
        SettingsError: no store is set.
    """
    options: dict[str, Any] = {
        "socket_connect_timeout": _CONNECT_SECONDS,
        "socket_timeout": _ANSWER_SECONDS,
        "retry": Retry(ExponentialBackoff(cap=0.2, base=0.02), _RESENDS),
        "max_connections": _MOST_CONNECTIONS,
    }
    if sentinels := Sentinels.parse(require_store(settings).store_url):
        asked = Sentinel(list(sentinels.nodes), **options)  # type: ignore[no-untyped-call]
        master: aioredis.Redis = asked.master_for(
            sentinels.master, db=sentinels.db, password=sentinels.password or None, **options
        )
        return master
    return aioredis.Redis.from_url(settings.redis_url, **options)


def heed_cancellation() -> None:
    """For loops that ask the store: on Python 3.11 its client can swallow a cancellation, and the loop would go on.

    Raises:
        CancelledError: the running task was called off.
    """
    if (task := asyncio.current_task()) and task.cancelling():
        raise asyncio.CancelledError
