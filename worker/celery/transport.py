"""The transport of a worker: kombu's Redis transport with queues in the order that the engine wants.

It relies on two undocumented methods of kombu. It overrides ``Channel._brpop_read``, because a message that is not
JSON would end the worker there, and it calls ``Channel._get_pool`` to make the connections that all channels share.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections.abc import Iterator
from queue import Empty
from typing import Any

import structlog
from celery.app.amqp import AMQP
from kombu import Connection
from kombu.connection import ConnectionPool
from kombu.transport.redis import Channel, SentinelChannel, SentinelTransport, Transport
from kombu.utils.scheduling import round_robin_cycle

log = structlog.get_logger()

#: How long one pop waits for a message, in seconds. Kombu's default of 1 keeps idle workers busy.
POP_SECONDS = 10


class QueueOrder(round_robin_cycle):  # type: ignore[type-arg]
    """Orders the queues of one channel: those with a free slot, most urgent first.

    Attributes:
        end_key: a list that only this channel pops, after its queues. An item in it ends the blocking pop.
        popping: the queues of the blocking pop that waits for its reply; empty if none waits.
    """

    def __init__(self, slots: Any) -> None:
        super().__init__()
        self._slots = slots
        self.end_key = f"end.{secrets.token_hex(8)}"
        self.popping: set[str] = set()

    def consume(self, n: int | None) -> Any:
        """Return the queues to pop, in order; none while no slot is free."""
        queues = self._wanted()
        self.popping = set(queues)
        return [*queues, self.end_key] if queues else []

    def rotate(self, last_used: str) -> None:
        """Count a message of a queue.

        Raises:
            Empty: the item only ended the pop.
        """
        self.popping = set()
        if last_used == self.end_key:
            raise Empty
        if self._slots:
            self._slots.took(last_used)

    def is_stale(self) -> bool:
        """Return whether the blocking pop lacks a queue that has a free slot now, or no slot is free any more."""
        wanted = self._wanted() if self.popping else []
        return bool(self.popping) and not (wanted and self.popping.issuperset(wanted))

    def _wanted(self) -> list[str]:
        return self._slots.asked(self.items) if self._slots else [*(self.items or ())]


#: One connection pool for each class of channel and server.
_pools: dict[tuple[Any, ...], Any] = {}
_ONE_AT_A_TIME = threading.RLock()


class TurnsChannel(Channel):
    """A channel that pops queues in the engine's order."""

    from_transport_options = (*Channel.from_transport_options, "slots")
    #: The engine's slots, set by the transport option ``slots``. None in tools of operators.
    slots: Any = None
    # Attributes that kombu's stubs lack.
    connection: Any
    connection_errors: Any
    order: QueueOrder
    _get_pool: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Create a channel, and close the connection that kombu opened only for a PING."""
        super().__init__(*args, **kwargs)
        self.async_pool.disconnect()

    def queue_order_strategy(self) -> QueueOrder:  # type: ignore[override]
        """Create the order of queues. Kombu calls this after it has set the transport options."""
        self.order = QueueOrder(self.slots)
        return self.order

    @property
    def pool(self) -> Any:
        """Return the connection pool that all channels to this server share."""
        client = self.connection.client
        key = type(self), client.hostname, client.port or self.connection.default_port, client.virtual_host
        if key not in _pools:
            _pools[key] = self._get_pool()
        return _pools[key]

    @contextlib.contextmanager
    def conn_or_acquire(self, client: Any = None) -> Iterator[Any]:
        """Yield a client, to one thread at a time, so that a burst of announcements opens one connection."""
        with _ONE_AT_A_TIME, super().conn_or_acquire(client) as used:
            yield used

    def basic_cancel(self, consumer_tag: str) -> Any:
        """Stop consuming from a queue, and end the blocking pop, which may name it."""
        result = super().basic_cancel(consumer_tag)
        self.end_pop()
        return result

    def close(self) -> None:
        """Close the channel. The blocking pop is ended first; kombu would wait for a message."""
        self.end_pop()
        super().close()

    def end_pop(self) -> None:
        """Make the blocking pop return now, with or without a message."""
        if self.order.popping:
            self.order.popping, end = set(), self.order.end_key
            with contextlib.suppress(*self.connection_errors), self.conn_or_acquire() as client:
                # The item expires if a message has ended the pop already.
                client.pipeline(transaction=False).lpush(end, "").pexpire(end, 60_000).execute()

    def _brpop_read(self, **options: Any) -> Any:
        """Deliver the message that a pop returned. Log and drop an item that is not a message.

        No turn is lost: its record names its next task, and a reaper announces that again.
        """
        try:
            return super()._brpop_read(**options)  # type: ignore[misc]
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            log.error("message.refused", error=type(error).__name__)
            return True


class TurnsSentinelChannel(TurnsChannel, SentinelChannel):
    """A ``TurnsChannel`` to the primary that Sentinel names."""

    from_transport_options = (*SentinelChannel.from_transport_options, "slots")


class TurnsTransport(Transport):
    """A transport to one server."""

    Channel = TurnsChannel
    brpop_timeout = POP_SECONDS
    channels: Any

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        """Register with the worker's loop, which then ends stale pops in each tick."""
        super().register_with_event_loop(connection, loop)
        loop.on_tick.add(lambda: [each.end_pop() for each in self.channels if each.order.is_stale()])


class TurnsSentinelTransport(TurnsTransport, SentinelTransport):
    """A transport to the primary that Sentinel names."""

    Channel = TurnsSentinelChannel


_OURS: dict[Any, Any] = {Transport: TurnsTransport, SentinelTransport: TurnsSentinelTransport}


class TurnsConnection(Connection):
    """A connection that replaces kombu's Redis transports by ours.

    A URL scheme for our transport would not do: kombu asks only the Sentinels whose scheme is ``sentinel``.
    """

    def get_transport_cls(self) -> Any:
        """Return our subclass of the transport that the URL names."""
        theirs = super().get_transport_cls()
        return _OURS.get(theirs, theirs)

    def Pool(self, limit: int | None = None, **_: Any) -> ConnectionPool:  # noqa: N802 - kombu's name
        """Return a pool of connections that publish."""
        return TurnsConnectionPool(self, limit)


class TurnsConnectionPool(ConnectionPool):
    """A pool whose connections use our transport."""

    def new(self) -> Any:
        """Create a connection with the transport of the pool's first connection."""
        made: Any = super().new()
        made.transport_cls = self.connection.get_transport_cls()
        return made


class TurnsAMQP(AMQP):
    """Makes an application connect by ``TurnsConnection``."""

    Connection = TurnsConnection
