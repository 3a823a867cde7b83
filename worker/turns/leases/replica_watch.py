"""Keeps Sentinel from promoting a replica that lags behind, for ``HELIX_DURABILITY=replicated``.

A server with ``replica-priority 0`` is never promoted. The master always has the priority 0, a replica while it lags.
While the master is away priorities stay unchanged.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import structlog
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from api_client.contract.settings import Settings
from api_client.contract.settings.sentinels import SentinelAddress

log = structlog.get_logger()

_LOOK_SECONDS, _ANSWER_SECONDS = 0.5, 0.5
#: Priorities of servers that may and may not be promoted.
MAY, MAY_NOT = 100, 0

Info = Mapping[str, Any]


def choose_priority(replica: Info, address: tuple[str, int], master: Info, offset: int) -> int:
    """Return the ``replica-priority`` that lets Sentinel promote a replica only if it is up to date.

    ``address`` is the replica's in the master's list, ``master`` the master's ``INFO replication``, read after the
    replica's, and ``offset`` the master's offset one look earlier (0 if unknown).
    """
    online = any(
        each.get("state") == "online" and (str(each.get("ip")), int(each.get("port", 0))) == address
        for name, each in master.items()
        if name.startswith("slave") and isinstance(each, Mapping)
    )
    if not (online and replica.get("master_link_status") == "up"):
        return MAY_NOT
    caught_up = offset > 0 and int(replica.get("slave_repl_offset", 0)) >= offset
    return MAY if caught_up else int(replica.get("slave_priority", MAY_NOT))


class ReplicaWatch:
    """Sets the priorities of Redis replicas, so that Sentinel never promotes a replica that lags behind."""

    def __init__(self, settings: Settings) -> None:
        replicated = settings.durability == "replicated" and settings.store_url
        self._sentinels = SentinelAddress.parse(settings.store_url) if replicated else None
        self._options: dict[str, Any] = {
            "socket_timeout": _ANSWER_SECONDS,
            "socket_connect_timeout": _ANSWER_SECONDS,
            "retry": Retry(NoBackoff(), 0),
        }
        self._servers: dict[tuple[str, int], Redis] = {}
        self._written: tuple[tuple[str, int], int] = (("", 0), 0)  # the last master and its offset
        self.name, self.seconds = "replica-watch", _LOOK_SECONDS if self._sentinels else 0.0
        nodes = list(self._sentinels.nodes) if self._sentinels else []
        self._asked: Any = Sentinel(nodes, **self._options)  # type: ignore[no-untyped-call]

    async def leave(self) -> None:
        """Do nothing, so that the replicas keep their priorities."""

    async def poll(self) -> None:
        """Update the priorities of all replicas. Raises ``RedisError`` if no sentinel or master answers."""
        assert self._sentinels is not None  # noqa: S101 - a fact for the type checker
        name = self._sentinels.master
        address = tuple(await self._asked.discover_master(name))
        known: list[tuple[str, int]] = []
        for each in self._asked.sentinels:
            if (listed := await _list_replicas(each, name)) is not None:
                known = listed
                break
        replicas = {each: info for each in known if (info := await self._read_replication(each)) is not None}
        master = await self._connect_server(address).info("replication")
        before, offset = self._written
        self._written = address, int(master.get("master_repl_offset", 0))
        if master.get("role") != "master":
            return
        for each, info in replicas.items():
            wanted = choose_priority(info, each, master, offset if before == address else 0)
            if info.get("role") == "slave" and wanted != int(info.get("slave_priority", wanted)):
                log.info("replica.priority", server=f"{each[0]}:{each[1]}", priority=wanted)
                with contextlib.suppress(RedisError):  # the user may lack the permission; doctor reports that
                    await self._connect_server(each).config_set("replica-priority", wanted)

    def _connect_server(self, address: tuple[str, int]) -> Redis:
        if address not in self._servers:
            password = self._sentinels.password if self._sentinels else ""
            self._servers[address] = Redis(host=address[0], port=address[1], password=password or None, **self._options)
        return self._servers[address]

    async def _read_replication(self, address: tuple[str, int]) -> Info | None:
        try:
            found: Info = await self._connect_server(address).info("replication")
        except (RedisError, OSError):
            return None
        return found


async def _list_replicas(sentinel: Redis, master: str) -> list[tuple[str, int]] | None:
    try:
        return [(str(each["ip"]), int(each["port"])) for each in await sentinel.sentinel_slaves(master)]
    except (RedisError, OSError):
        return None
