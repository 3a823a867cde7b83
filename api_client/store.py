"""The store as this package asks it: on an event loop, with time-outs that keep the promise made to callers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import redis.asyncio as aioredis
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel, SentinelConnectionPool
from redis.backoff import ExponentialBackoff
from redis.commands.core import AsyncScript
from redis.exceptions import RedisError

from api_client.contract.commands import command_text, common_settings, turn_keys
from api_client.contract.errors import StoreUnavailable
from api_client.contract.keys import Keys, keys_of
from api_client.contract.settings import Settings, require_store
from api_client.contract.values.sentinels import Sentinels

#: A store that is down must be told to the caller within two seconds; repeats are harmless, see ``TurnsClient.submit``.
_CONNECT_SECONDS, _ANSWER_SECONDS, _RESENDS = 0.8, 0.8, 1
#: Longest wait for one answer, a disk's confirmation included.
_PATIENCE_SECONDS = 4.0
#: Every reader of a turn holds one. The library's own limit (100) would be the number of streams a relay can serve.
_MOST_CONNECTIONS = 2**16


#: Connections kept for the next who needs one; the rest is closed when it is given back.
_KEPT_CONNECTIONS = 16


class _Kept:
    """A pool that closes what it does not need: a burst of streams leaves no connections behind."""

    async def release(self: Any, connection: Any) -> None:
        """Give a connection back."""
        await super().release(connection)  # type: ignore[misc]
        while len(self._available_connections) > _KEPT_CONNECTIONS:
            # Taken out first: nobody else gets it while it closes.
            await self._available_connections.pop(0).disconnect()


class _Pool(_Kept, aioredis.ConnectionPool):
    """Connections to the store."""


class _SentinelPool(_Kept, SentinelConnectionPool):
    """Connections to the master that Sentinel names."""


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
            sentinels.master,
            connection_pool_class=_SentinelPool,
            db=sentinels.db,
            password=sentinels.password or None,
            **options,
        )
        return master
    return aioredis.Redis.from_pool(_Pool.from_url(settings.redis_url, **options))


class Store:
    """Connections for everybody on one event loop; who asks through it gets an answer or ``StoreUnavailable``.

    Attributes:
        settings: with a store set. redis: the connections, for ``ask``.
        shards: the keys of every shard.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = require_store(settings)
        self.redis = open_store(settings)
        self.shards = tuple(Keys(settings.namespace, shard) for shard in range(settings.shards))
        self._common = common_settings(settings)

    @property
    def namespace(self) -> str:
        """What every key begins with."""
        return self.settings.namespace

    async def close(self) -> None:
        """Close the connections."""
        await self.redis.aclose()

    async def ask(self, answer: Awaitable[Any]) -> Any:
        """Wait for an answer of ``redis``, a few seconds at most.

        Raises:
            StoreUnavailable: there was none, or an error.
        """
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                return await answer
        except (RedisError, OSError, TimeoutError) as error:
            raise StoreUnavailable(type(error).__name__) from error

    def command(self, path: Path) -> AsyncScript:
        """The Lua command in this file, for ``change``."""
        return self.redis.register_script(command_text(path))

    async def change(
        self, command: AsyncScript, turn_id: str, session_id: str, args: list[Any], more_keys: list[str] | None = None
    ) -> Any:
        """Change a turn by a command that takes the turn's keys and what all of them need first. Raises as ``ask``."""
        keys = turn_keys(self.namespace, turn_id, session_id, time.time()) + (more_keys or [])
        bell = keys_of(self.namespace, turn_id).bell(turn_id)
        return await self.ask(command(keys=keys, args=[bell, turn_id, self._common, *args]))

    async def settle(self, keys: Keys) -> None:
        """With ``power`` durability, wait until the disk has what was written before this (one write, then WAITAOF).

        Raises:
            StoreUnavailable: the disk did not confirm it in time.
        """
        if self.settings.durability != "power":
            return
        async with self.redis.client() as connection:
            await self.ask(connection.set(f"{keys.due}:settled", "1", px=60_000))
            done = await self.ask(connection.execute_command("WAITAOF", 1, 0, 2000))  # type: ignore[no-untyped-call]
        if not done or not int(done[0]):
            raise StoreUnavailable("the disk did not confirm the write within 2 seconds")


def heed_cancellation() -> None:
    """For loops that ask the store: on Python 3.11 its client can swallow a cancellation, and the loop would go on.

    Raises:
        CancelledError: the running task was called off.
    """
    if (task := asyncio.current_task()) and task.cancelling():
        raise asyncio.CancelledError
