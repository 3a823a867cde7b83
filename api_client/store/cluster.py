"""The store in a Redis Cluster: the master that has the slot of all keys of an installation, wherever that is now.

What was compared, for the one place that decides it:

- redis-py's ``RedisCluster`` sends each command where its key is. Our commands change a turn, the line of owners,
  lists and figures at once (``turns/lua``): one slot, or a command that is half carried out. So there is
  nothing to route, and ``store.Connection``, over which all turns of a loop ask, cannot use its connections.
- Keys spread by session need a connection, a fail-over and a wait for each slot, and what belongs to the installation
  stays on one master. Beyond one master: several installations behind a router (docs/deploying.md, Cells).
- One slot, and connections of redis-py that ask where its master is before they connect: done here. It gives fail-over,
  resharding and many installations in a cluster; the load of one installation is on one master.

A slot that moves or has no master answers MOVED, ASK, TRYAGAIN or CLUSTERDOWN. To us each is a lost connection: who
asks waits as for a store that is away, and the next connection goes to the master of then.
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
from api_client.contract.settings.cluster import Cluster

Address = tuple[str, int]


class SlotAway(RedisConnectionError):
    """The slot is not at this node, or nowhere just now."""


_UNKNOWN = "no node of the cluster knows the master of our keys' slot"
_STATE, _SLOTS = "CLUSTER INFO", "CLUSTER SLOTS"
_AWAY = dict.fromkeys(("MOVED", "ASK", "TRYAGAIN", "CLUSTERDOWN", "MASTERDOWN"), SlotAway)


class _Parser(DefaultParser):  # type: ignore[misc,valid-type]
    EXCEPTION_CLASSES: ClassVar = {**DefaultParser.EXCEPTION_CLASSES, **_AWAY}


class _AsyncParser(AsyncDefaultParser):  # type: ignore[misc,valid-type]
    EXCEPTION_CLASSES: ClassVar = {**AsyncDefaultParser.EXCEPTION_CLASSES, **_AWAY}


def slot_of(namespace: str) -> int:
    """The slot of all keys of an installation."""
    return int(key_slot(Keys(namespace).installation.encode()))


def master_of(slots: Iterable[Any], slot: int, asked: str) -> Address | None:
    """The master of a slot, from the reply of the host ``asked`` to CLUSTER SLOTS; None without one. Pure."""
    for first, last, master, *_ in slots:
        if first <= slot <= last:
            host = _text(master[0])
            return (asked if host in {"", "?"} else host), int(master[1])
    return None


def nodes_of(slots: Iterable[Any]) -> list[Address]:
    """Every node that a reply to CLUSTER SLOTS names. Pure."""
    found = [(_text(node[0]), int(node[1])) for _, _, *nodes in slots for node in nodes]
    return list(dict.fromkeys(each for each in found if each[0] not in {"", "?"}))


def _text(name: Any) -> str:
    return name.decode() if isinstance(name, bytes) else str(name or "")


class _Nodes:
    """The nodes to ask for the slot's master, those that knew lately first."""

    def __init__(self, cluster: Cluster, namespace: str, options: Mapping[str, Any]) -> None:
        self._named, self._known = cluster.nodes, list[Address](cluster.nodes)
        self._slot = slot_of(namespace)
        self._options = {**options, "retry": type(options["retry"])(NoBackoff(), 0)}

    def _in_turn(self) -> tuple[Address, ...]:
        return tuple(dict.fromkeys((*self._known, *self._named)))

    def _said(self, node: Address, replies: tuple[Mapping[str, str], Sequence[Any]]) -> Address | None:
        """The slot's master, if the node is of the majority: another one would name the master of before."""
        state, slots = replies
        found = master_of(slots, self._slot, node[0]) if state["cluster_state"] == "ok" else None
        if found:
            self._known = [node, *nodes_of(slots)]
        return found

    def _ask_last(self, node: Address) -> None:
        self._known = [*(each for each in self._in_turn() if each != node), node]


class Nodes(_Nodes):
    """The nodes of a cluster, for programs without a loop."""

    def master(self) -> Address:
        """The slot's master. Raises SlotAway: no node of the majority answers."""
        for node in self._in_turn():
            with redis.Redis(host=node[0], port=node[1], **self._options) as asked, suppress(RedisError, OSError):
                pipe: Any = asked.pipeline(transaction=False)
                if found := self._said(node, pipe.execute_command(_STATE).execute_command(_SLOTS).execute()):
                    return found
            self._ask_last(node)
        raise SlotAway(_UNKNOWN)


class AsyncNodes(_Nodes):
    """The nodes of a cluster, for a loop."""

    async def master(self) -> Address:
        """As ``Nodes.master``."""
        for node in self._in_turn():
            async with aioredis.Redis(host=node[0], port=node[1], **self._options) as asked:
                with suppress(RedisError, OSError):
                    pipe: Any = asked.pipeline(transaction=False)
                    if found := self._said(node, await pipe.execute_command(_STATE).execute_command(_SLOTS).execute()):
                        return found
            self._ask_last(node)
        raise SlotAway(_UNKNOWN)
