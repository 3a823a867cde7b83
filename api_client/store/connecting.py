"""Connecting to the store in each of its forms: one server, by TCP, TLS or a unix socket; Sentinel's master; a cluster.

Nothing else in the product makes such a connection. All uses of redis-py beyond its documents are here, and
tests/integration/test_connection.py names them.
"""

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
from api_client.contract.settings.cluster import Cluster
from api_client.contract.settings.sentinels import Sentinels
from api_client.store import cluster_connections

#: Every reader of a turn, and every agent's writer, may hold one. The library's own limit (100) would be the number of
#: streams a relay can serve, and is below what HELIX_RUN_SLOTS may be.
_MOST_CONNECTIONS = 2**16
#: Connections kept for the next who needs one; the rest is closed when it is given back.
_KEPT_CONNECTIONS = 16
#: What the reader says when a reply is not whole yet.
NOT_YET = object()


def open_store(
    settings: Settings,
    *,
    connect_seconds: float = 2.0,
    answer_seconds: float = 2.0,
    resends: int = 0,
    single: bool = False,
) -> aioredis.Redis:
    """A pool of connections for one event loop; ``answer_seconds`` bounds signing in too, and what Sentinel is asked.

    ``single``: of one connection, for which the others wait.

    Raises:
        SettingsError: no store is set.
    """
    retry = AsyncRetry(ExponentialBackoff(cap=0.2, base=0.02), resends)
    options = _options(connect_seconds, answer_seconds, retry)
    if sentinels := Sentinels.parse(require_store(settings).store_url):
        asked: Any = AsyncSentinel(list(sentinels.nodes), **options)  # type: ignore[no-untyped-call]
        options = options | _master(sentinels, _AsyncOfSentinel)
        pool = _SingleSentinelPool if single else _SentinelPool
        master: aioredis.Redis = asked.master_for(connection_pool_class=pool, **options)
        return master
    if named := Cluster.parse(settings.store_url):
        options = options | _of_address(parse_async_url(named.url))
        options = cluster_connections.pool_options(named, settings.namespace, options, loop=True)
    else:
        options = options | _of_address(parse_async_url(settings.redis_url))
    return aioredis.Redis.from_pool((_SinglePool if single else _Pool)(**options))


def connect(settings: Settings, *, answer_seconds: float = 5.0, resends: int = 3) -> Any:
    """A pool of blocking connections, for a thread that no loop may hold up and for programs without one.

    Raises:
        SettingsError: no store is set.
    """
    retry = Retry(ExponentialBackoff(cap=0.5, base=0.05), resends)
    options = _options(min(2.0, answer_seconds), answer_seconds, retry)
    if sentinels := Sentinels.parse(require_store(settings).store_url):
        asked: Any = Sentinel(list(sentinels.nodes), **options)  # type: ignore[no-untyped-call]
        return asked.master_for(**_master(sentinels, _OfSentinel), **options)
    if named := Cluster.parse(settings.store_url):
        options = options | _of_address(parse_url(named.url))  # type: ignore[no-untyped-call]
        options = cluster_connections.pool_options(named, settings.namespace, options, loop=False)
    else:
        options = options | _of_address(parse_url(settings.redis_url))  # type: ignore[no-untyped-call]
    return redis.Redis.from_pool(redis.ConnectionPool(**options))


def _options(connect_seconds: float, answer_seconds: float, retry: Any) -> dict[str, Any]:
    return {
        "socket_connect_timeout": connect_seconds,
        "socket_timeout": answer_seconds,
        "retry": retry,
        "max_connections": _MOST_CONNECTIONS,
        # Signing in takes one round trip instead of four: a link may be slow, and a lease not be kept until it is done.
        "driver_info": None,
        "maint_notifications_config": MaintNotificationsConfig(enabled=False),
    }


def _of_address(options: Mapping[str, Any]) -> dict[str, Any]:
    """What an address says; ``?credential_provider=package.module.Class`` is one of redis-py, as for Celery."""
    found = dict(options)
    if name := found.pop("credential_provider", None):
        try:
            found["credential_provider"] = resolve_name(name)()
        except (ImportError, AttributeError, ValueError, TypeError) as error:
            raise SettingsError([f"credential_provider={name}: {error}"]) from error
    return found


def _master(sentinels: Sentinels, kind: type) -> dict[str, Any]:
    own = {"service_name": sentinels.master, "db": sentinels.db, "password": sentinels.password or None}
    return own | {"connection_class": kind}


class _Pool(aioredis.ConnectionPool):
    """Connections to the store. Few idle ones stay: a burst of streams leaves none behind."""

    def make_connection(self) -> Any:
        """A connection whose commands hiredis packs: redis-py packs them word by word."""
        made: Any = super().make_connection()  # type: ignore[no-untyped-call]
        made.pack_command = partial(_packed, made.pack_command)
        return made

    async def release(self, connection: Any) -> None:
        """Give a connection back."""
        await super().release(connection)
        while len(self._available_connections) > _KEPT_CONNECTIONS:
            # Taken out first: nobody else gets it while it closes.
            await self._available_connections.pop(0).disconnect()


def _packed(by_redis: Callable[..., Any], *words: Any) -> Any:
    if isinstance(words[0], str) and " " not in words[0]:  # "CONFIG GET" is two words on the wire
        with contextlib.suppress(TypeError):  # a word of a type that redis-py may know
            return [hiredis.pack_command(words)]
    return by_redis(*words)


class _SentinelPool(_Pool, SentinelConnectionPool):
    """Connections to the master that Sentinel names."""


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
    """A connection that redis-py made and signed in; its transport is ours.

    redis-py's own reading and packing costs a turn more than all else that is done with the store.

    Attributes:
        transport: where commands are written. reader: makes replies of the bytes fed to it.
    """

    def __init__(self, connection: Any) -> None:
        self._connection = connection  # its writer would close the transport when it is collected
        self.transport: asyncio.WriteTransport = connection._writer.transport  # noqa: SLF001
        error_of = connection._parser.parse_error  # noqa: SLF001
        self.reader = hiredis.Reader(protocolError=InvalidResponse, replyError=error_of, notEnoughData=NOT_YET)

    def close(self) -> None:
        """Give it up at once."""
        self.transport.abort()
        self._connection._close()  # noqa: SLF001  # or it complains, when collected, that nobody closed it


def socket_of(connection: Any) -> Any:
    """The socket of a blocking connection, for an answer that is not of the protocol."""
    return connection._sock  # noqa: SLF001
