"""The transport of a worker: kombu's Redis transport with queues in the order that the engine wants.

Two undocumented methods of kombu are used: ``Channel._brpop_read`` is overridden, because a message that is not JSON
would end the worker there, and ``Channel._get_pool`` makes the shared connections.
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

#: Seconds that one pop waits for a message. Kombu's default of 1 keeps idle workers busy.
POP_SECONDS = 10


class QueueOrder(round_robin_cycle):  # type: ignore[type-arg]
    """Chooses which queues a channel polls: only those with free slots, the most urgent first.

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
        """Return the queues to poll now, in order, or an empty list while all slots are in use."""
        queues = self._wanted()
        self.popping = set(queues)
        return [*queues, self.end_key] if queues else []

    def rotate(self, last_used: str) -> None:
        """Record that a message was taken from the queue ``last_used``.

        Raises ``Empty`` if the item only ended the pop.
        """
        self.popping = set()
        if last_used == self.end_key:
            raise Empty
        if self._slots:
            self._slots.took(last_used)

    def is_stale(self) -> bool:
        """Return True if the current poll waits for the wrong queues, because slots were taken or freed meanwhile."""
        wanted = self._wanted() if self.popping else []
        return bool(self.popping) and not (wanted and self.popping.issuperset(wanted))

    def _wanted(self) -> list[str]:
        return self._slots.queues_to_poll(self.items) if self._slots else [*(self.items or ())]


_pools: dict[tuple[Any, ...], Any] = {}
_ONE_AT_A_TIME = threading.RLock()


class TurnsChannel(Channel):
    """A Redis channel that polls its queues in the order that the engine chooses."""

    from_transport_options = (*Channel.from_transport_options, "slots")
    #: The engine's slots, set by the transport option ``slots``. None in tools of operators.
    slots: Any = None
    connection: Any
    connection_errors: Any
    order: QueueOrder
    _get_pool: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Create a channel, and close the connection that kombu opened only to ping the server."""
        super().__init__(*args, **kwargs)
        self.async_pool.disconnect()

    def queue_order_strategy(self) -> QueueOrder:  # type: ignore[override]
        self.order = QueueOrder(self.slots)
        return self.order

    @property
    def pool(self) -> Any:
        client = self.connection.client
        key = type(self), client.hostname, client.port or self.connection.default_port, client.virtual_host
        if key not in _pools:
            _pools[key] = self._get_pool()
        return _pools[key]

    @contextlib.contextmanager
    def conn_or_acquire(self, client: Any = None) -> Iterator[Any]:
        """Yield a Redis client to one thread at a time, so that a burst of messages opens only one connection."""
        with _ONE_AT_A_TIME, super().conn_or_acquire(client) as used:
            yield used

    def basic_cancel(self, consumer_tag: str) -> Any:
        """Stop consuming from a queue, and interrupt the poll in progress because it may include the queue."""
        result = super().basic_cancel(consumer_tag)
        self.end_pop()
        return result

    def close(self) -> None:
        """Interrupt the poll in progress, which would otherwise wait for a message, and close the channel."""
        self.end_pop()
        super().close()

    def end_pop(self) -> None:
        """Make the poll in progress return now, with or without a message."""
        if self.order.popping:
            self.order.popping, end = set(), self.order.end_key
            with contextlib.suppress(*self.connection_errors), self.conn_or_acquire() as client:
                client.pipeline(transaction=False).lpush(end, "").pexpire(end, 60_000).execute()

    def _brpop_read(self, **options: Any) -> Any:
        """Deliver the message that a poll returned. Log and drop an item that is not a valid message."""
        try:
            return super()._brpop_read(**options)  # type: ignore[misc]
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            log.error("message.refused", error=type(error).__name__)
            return True


class TurnsSentinelChannel(TurnsChannel, SentinelChannel):
    """A ``TurnsChannel`` to the Redis primary that Sentinel names."""

    from_transport_options = (*SentinelChannel.from_transport_options, "slots")


class TurnsTransport(Transport):
    """A Redis transport that polls queues in the order that the engine chooses."""

    Channel = TurnsChannel
    brpop_timeout = POP_SECONDS
    channels: Any

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        """Register with the worker's event loop, so that polls of the wrong queues can be interrupted."""
        super().register_with_event_loop(connection, loop)
        loop.on_tick.add(lambda: [each.end_pop() for each in self.channels if each.order.is_stale()])


class TurnsSentinelTransport(TurnsTransport, SentinelTransport):
    """A ``TurnsTransport`` to the Redis primary that Sentinel names."""

    Channel = TurnsSentinelChannel


_OURS: dict[Any, Any] = {Transport: TurnsTransport, SentinelTransport: TurnsSentinelTransport}


class TurnsConnection(Connection):
    """A connection to the broker that uses our Redis transports instead of kombu's.

    A URL scheme of our own would not do: kombu asks only Sentinels whose scheme is ``sentinel``.
    """

    def get_transport_cls(self) -> Any:
        theirs = super().get_transport_cls()
        return _OURS.get(theirs, theirs)

    def Pool(self, limit: int | None = None, **_: Any) -> ConnectionPool:  # noqa: N802 - kombu's name
        return TurnsConnectionPool(self, limit)


class TurnsConnectionPool(ConnectionPool):
    """A pool of broker connections that use our transports."""

    def new(self) -> Any:
        made: Any = super().new()
        made.transport_cls = self.connection.get_transport_cls()
        return made


class TurnsAMQP(AMQP):
    """Makes a Celery application connect to the broker with ``TurnsConnection``."""

    Connection = TurnsConnection
