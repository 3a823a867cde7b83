"""Opens all connections to the store, which may be a single server (TCP, TLS, unix socket), Sentinel, or a cluster."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from functools import partial
from pkgutil import resolve_name
from typing import Any

import hiredis
import redis
import redis.asyncio as aioredis
from redis.asyncio.connection import parse_url as parse_async_url
from redis.asyncio.retry import Retry as AsyncRetry
from redis.asyncio.sentinel import Sentinel as AsyncSentinel
from redis.asyncio.sentinel import SentinelConnectionPool
from redis.asyncio.sentinel import SentinelManagedConnection as AsyncSentinelManagedConnection
from redis.backoff import ExponentialBackoff
from redis.connection import parse_url
from redis.exceptions import InvalidResponse
from redis.maint_notifications import MaintNotificationsConfig
from redis.retry import Retry
from redis.sentinel import Sentinel, SentinelManagedConnection

from api_client.contract.errors import SettingsError
from api_client.contract.settings import Settings, require_store
from api_client.contract.settings.cluster import ClusterAddress
from api_client.contract.settings.sentinels import SentinelAddress
from api_client.store import cluster_connections

#: Every reader of a turn and every agent's writer may hold a connection, more than the library's limit of 100.
_MOST_CONNECTIONS = 2**16
_KEPT_CONNECTIONS = 16
#: The reader's result for an incomplete reply.
NOT_YET = object()


def open_store(
    settings: Settings,
    *,
    connect_seconds: float = 2.0,
    answer_seconds: float = 2.0,
    resends: int = 0,
    single: bool = False,
) -> aioredis.Redis:
    """Return a redis-py client of the configured store for one event loop.

    ``answer_seconds`` also limits the login and questions to Sentinel. With ``single`` all callers share one
    connection. Raises ``SettingsError`` if no store is configured.
    """
    retry = AsyncRetry(ExponentialBackoff(cap=0.2, base=0.02), resends)
    options = _options(connect_seconds, answer_seconds, retry)
    if sentinels := SentinelAddress.parse(require_store(settings).store_url):
        asked: Any = AsyncSentinel(list(sentinels.nodes), **options)  # type: ignore[no-untyped-call]
        options = options | _master_options(sentinels, _AsyncOfSentinel)
        pool = _SingleSentinelPool if single else _SentinelPool
        master: aioredis.Redis = asked.master_for(connection_pool_class=pool, **options)
        return master
    if named := ClusterAddress.parse(settings.store_url):
        options = options | _parse_address(parse_async_url(named.url))
        options = cluster_connections.pool_options(named, settings.namespace, options, loop=True)
    else:
        options = options | _parse_address(parse_async_url(settings.redis_url))
    return aioredis.Redis.from_pool((_SinglePool if single else _Pool)(**options))


def open_blocking_store(settings: Settings, *, answer_seconds: float = 5.0, resends: int = 3) -> Any:
    """Return a blocking redis-py client of the configured store, for threads and programs without an event loop.

    Raises ``SettingsError`` if no store is configured.
    """
    retry = Retry(ExponentialBackoff(cap=0.5, base=0.05), resends)
    options = _options(min(2.0, answer_seconds), answer_seconds, retry)
    if sentinels := SentinelAddress.parse(require_store(settings).store_url):
        asked: Any = Sentinel(list(sentinels.nodes), **options)  # type: ignore[no-untyped-call]
        return asked.master_for(**_master_options(sentinels, _OfSentinel), **options)
    if named := ClusterAddress.parse(settings.store_url):
        options = options | _parse_address(parse_url(named.url))  # type: ignore[no-untyped-call]
        options = cluster_connections.pool_options(named, settings.namespace, options, loop=False)
    else:
        options = options | _parse_address(parse_url(settings.redis_url))  # type: ignore[no-untyped-call]
    return redis.Redis.from_pool(redis.ConnectionPool(**options))


def _options(connect_seconds: float, answer_seconds: float, retry: Any) -> dict[str, Any]:
    return {
        "socket_connect_timeout": connect_seconds,
        "socket_timeout": answer_seconds,
        "retry": retry,
        "max_connections": _MOST_CONNECTIONS,
        # Log in with one round trip instead of four.
        "driver_info": None,
        "maint_notifications_config": MaintNotificationsConfig(enabled=False),
    }


def _parse_address(options: Mapping[str, Any]) -> dict[str, Any]:
    found = dict(options)
    if name := found.pop("credential_provider", None):
        try:
            found["credential_provider"] = resolve_name(name)()
        except (ImportError, AttributeError, ValueError, TypeError) as error:
            raise SettingsError([f"credential_provider={name}: {error}"]) from error
    return found


def _master_options(sentinels: SentinelAddress, kind: type) -> dict[str, Any]:
    own = {"service_name": sentinels.master, "db": sentinels.db, "password": sentinels.password or None}
    return own | {"connection_class": kind}


class _Pool(aioredis.ConnectionPool):
    """A connection pool that closes all but a few idle connections after a burst."""

    def make_connection(self) -> Any:
        """Create a connection that packs commands with hiredis, which is faster than redis-py."""
        made: Any = super().make_connection()  # type: ignore[no-untyped-call]
        made.pack_command = partial(_pack_words, made.pack_command)
        return made

    async def release(self, connection: Any) -> None:
        await super().release(connection)
        while len(self._available_connections) > _KEPT_CONNECTIONS:
            # Removed first, so that no caller gets the closing connection.
            await self._available_connections.pop(0).disconnect()


def _pack_words(by_redis: Callable[..., Any], *words: Any) -> Any:
    if isinstance(words[0], str) and " " not in words[0]:  # redis-py splits names such as "CONFIG GET" into two words
        with contextlib.suppress(TypeError):
            return [hiredis.pack_command(words)]
    return by_redis(*words)


class _SentinelPool(_Pool, SentinelConnectionPool):
    """Connection pool for the master that Redis Sentinel names."""


class _Single(aioredis.BlockingConnectionPool):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options | {"max_connections": 1})


class _SinglePool(_Pool, _Single):
    pass


class _SingleSentinelPool(_SentinelPool, _Single):
    pass


class _OfSentinel(SentinelManagedConnection):
    connect = redis.Connection.connect

    def _connect(self) -> Any:
        self.host, self.port = self.connection_pool.get_master_address()
        return super()._connect()  # type: ignore[no-untyped-call]


class _AsyncOfSentinel(AsyncSentinelManagedConnection):
    connect = aioredis.Connection.connect

    async def _connect(self) -> None:
        self.host, self.port = await self.connection_pool.get_master_address()
        await super()._connect()  # type: ignore[no-untyped-call]


class OpenedConnection:
    """A connection opened and authenticated by redis-py whose transport is used directly, for speed."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection  # keeps the writer alive, which would close the transport on collection
        self.transport: asyncio.WriteTransport = connection._writer.transport  # noqa: SLF001
        error_of = connection._parser.parse_error  # noqa: SLF001
        self.reader = hiredis.Reader(protocolError=InvalidResponse, replyError=error_of, notEnoughData=NOT_YET)

    def close(self) -> None:
        self.transport.abort()
        self._connection._close()  # noqa: SLF001  # avoids a warning about an unclosed connection


def get_socket(connection: Any) -> Any:
    return connection._sock  # noqa: SLF001
