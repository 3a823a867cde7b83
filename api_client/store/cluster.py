"""The store in a Redis Cluster: finds the master of the slot that holds all keys of an installation.

Our commands change several keys at once, so all keys need one slot and redis-py's ``RedisCluster`` would have nothing
to route. Larger installations use several cells (docs/deploying.md, Cells). The replies MOVED, ASK, TRYAGAIN and
CLUSTERDOWN count as a lost connection; the next one goes to the current master.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, ClassVar

import redis
import redis.asyncio as aioredis
from redis.asyncio.connection import DefaultParser as AsyncDefaultParser
from redis.backoff import NoBackoff
from redis.connection import DefaultParser
from redis.crc import key_slot
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError

from api_client.contract.keys import Keys
from api_client.contract.settings.cluster import ClusterAddress

Address = tuple[str, int]


class SlotAway(RedisConnectionError):
    """Raised when a cluster node does not serve the requested slot, or when the slot has no master."""


_UNKNOWN = "no node of the cluster knows the master of our keys' slot"
_STATE, _SLOTS = "CLUSTER INFO", "CLUSTER SLOTS"
_AWAY = dict.fromkeys(("MOVED", "ASK", "TRYAGAIN", "CLUSTERDOWN", "MASTERDOWN"), SlotAway)


class _Parser(DefaultParser):  # type: ignore[misc,valid-type]
    EXCEPTION_CLASSES: ClassVar = {**DefaultParser.EXCEPTION_CLASSES, **_AWAY}


class _AsyncParser(AsyncDefaultParser):  # type: ignore[misc,valid-type]
    EXCEPTION_CLASSES: ClassVar = {**AsyncDefaultParser.EXCEPTION_CLASSES, **_AWAY}


def find_slot(namespace: str) -> int:
    """Return the number of the Redis Cluster slot that holds all keys of an installation."""
    return int(key_slot(Keys(namespace).installation.encode()))


def find_master(slots: Iterable[Any], slot: int, asked: str) -> Address | None:
    """Return the address of a slot's master from a CLUSTER SLOTS reply, or None without a master."""
    for first, last, master, *_ in slots:
        if first <= slot <= last:
            host = _decode_text(master[0])
            return (asked if host in {"", "?"} else host), int(master[1])
    return None


def list_nodes(slots: Iterable[Any]) -> list[Address]:
    found = [(_decode_text(node[0]), int(node[1])) for _, _, *nodes in slots for node in nodes]
    return list(dict.fromkeys(each for each in found if each[0] not in {"", "?"}))


def _decode_text(name: Any) -> str:
    return name.decode() if isinstance(name, bytes) else str(name or "")


class _Nodes:
    """The nodes of a Redis Cluster, in the order in which to ask them for a slot's master."""

    def __init__(self, cluster: ClusterAddress, namespace: str, options: Mapping[str, Any]) -> None:
        self._named, self._known = cluster.nodes, list[Address](cluster.nodes)
        self._slot = find_slot(namespace)
        self._options = {**options, "retry": type(options["retry"])(NoBackoff(), 0)}

    def _ordered_nodes(self) -> tuple[Address, ...]:
        return tuple(dict.fromkeys((*self._known, *self._named)))

    def _accept_reply(self, node: Address, replies: tuple[Mapping[str, str], Sequence[Any]]) -> Address | None:
        """Return the slot's master from a node's replies, or None if the node may be outdated."""
        state, slots = replies
        found = find_master(slots, self._slot, node[0]) if state["cluster_state"] == "ok" else None
        if found:
            self._known = [node, *list_nodes(slots)]
        return found

    def _demote_node(self, node: Address) -> None:
        self._known = [*(each for each in self._ordered_nodes() if each != node), node]


class Nodes(_Nodes):
    """Finds the master of an installation's Redis Cluster slot, for programs without an event loop."""

    def find_slot_master(self) -> Address:
        """Return the address of the slot's master. Raises ``SlotAway`` if no node knows the master."""
        for node in self._ordered_nodes():
            with redis.Redis(host=node[0], port=node[1], **self._options) as asked, suppress(RedisError, OSError):
                pipe: Any = asked.pipeline(transaction=False)
                if found := self._accept_reply(node, pipe.execute_command(_STATE).execute_command(_SLOTS).execute()):
                    return found
            self._demote_node(node)
        raise SlotAway(_UNKNOWN)


class AsyncNodes(_Nodes):
    """Finds the master of an installation's Redis Cluster slot, for programs with an event loop."""

    async def find_slot_master(self) -> Address:
        for node in self._ordered_nodes():
            async with aioredis.Redis(host=node[0], port=node[1], **self._options) as asked:
                with suppress(RedisError, OSError):
                    pipe: Any = asked.pipeline(transaction=False)
                    if found := self._accept_reply(
                        node, await pipe.execute_command(_STATE).execute_command(_SLOTS).execute()
                    ):
                        return found
            self._demote_node(node)
        raise SlotAway(_UNKNOWN)
