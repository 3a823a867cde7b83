"""Connections that ask a cluster's nodes for the master before each connect."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import redis
import redis.asyncio as aioredis

from api_client.contract.settings.cluster import ClusterAddress
from api_client.store.cluster import AsyncNodes, Nodes, _AsyncParser, _Parser


class _ToMaster:
    def __init__(self, *, nodes: Nodes, **options: Any) -> None:
        super().__init__(parser_class=_Parser, **options)  # type: ignore[call-arg]
        self._nodes = nodes

    def _connect(self) -> Any:
        self.host, self.port = self._nodes.find_slot_master()
        return super()._connect()  # type: ignore[misc]


class _AsyncToMaster:
    def __init__(self, *, nodes: AsyncNodes, **options: Any) -> None:
        super().__init__(parser_class=_AsyncParser, **options)  # type: ignore[call-arg]
        self._nodes = nodes

    async def _connect(self) -> None:
        self.host, self.port = await self._nodes.find_slot_master()
        await super()._connect()  # type: ignore[misc]


class _Plain(_ToMaster, redis.Connection):
    pass


class _Tls(_ToMaster, redis.SSLConnection):
    pass


class _AsyncPlain(_AsyncToMaster, aioredis.Connection):
    pass


class _AsyncTls(_AsyncToMaster, aioredis.SSLConnection):
    pass


def pool_options(cluster: ClusterAddress, namespace: str, options: Mapping[str, Any], *, loop: bool) -> dict[str, Any]:
    """Return options for a redis-py connection pool that connects to the master of the installation's cluster slot."""
    tls = options.get("connection_class") is not None
    own = {name: value for name, value in options.items() if name not in {"host", "port", "db", "connection_class"}}
    asked = own | {"ssl": tls}
    if loop:
        kind: Any = _AsyncTls if tls else _AsyncPlain
        return own | {"connection_class": kind, "nodes": AsyncNodes(cluster, namespace, asked)}
    return own | {"connection_class": _Tls if tls else _Plain, "nodes": Nodes(cluster, namespace, asked)}
