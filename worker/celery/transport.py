"""The transport of a worker: kombu's Redis transport, from whose queues the engine says which comes next.

Of kombu it overrides two methods that no document promises: ``Channel._brpop_read``, which a message that is not JSON
would break, and ``Channel._get_pool``, which makes the connections that here all channels share.
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

#: How long a channel waits for a message by one command, in seconds: an idle worker asks less often.
POP_SECONDS = 10


class QueueOrder(round_robin_cycle):  # type: ignore[type-arg]
    """The queues of one channel, in the order in which the engine's slots want their messages.

    Attributes:
        end: a list that this channel alone pops, after its queues: an item there ends the pop.
        asked: the queues of the waiting pop.
    """

    def __init__(self, slots: Any) -> None:
        super().__init__()
        self._slots = slots
        self.end = f"end.{secrets.token_hex(8)}"
        self.asked: set[str] = set()

    def consume(self, n: int | None) -> Any:
        """Return the queues to pop from, the first of them first; none while no slot is free."""
        queues = self._wanted()
        self.asked = set(queues)
        return [*queues, self.end] if queues else []

    def rotate(self, last_used: str) -> None:
        """Note that a message was taken from this queue. Raises ``Empty``: it only ended the pop."""
        self.asked = set()
        if last_used == self.end:
            raise Empty
        if self._slots:
            self._slots.took(last_used)

    def is_stale(self) -> bool:
        """Return whether the waiting pop asks for other queues than those with a free slot by now."""
        wanted = self._wanted() if self.asked else []
        return bool(self.asked) and not (wanted and self.asked.issuperset(wanted))

    def _wanted(self) -> list[str]:
        return self._slots.asked(self.items) if self._slots else [*(self.items or ())]


#: The connections for commands answered at once, of each kind of channel and server.
_pools: dict[tuple[Any, ...], Any] = {}
_ONE_AT_A_TIME = threading.RLock()


class TurnsChannel(Channel):
    """A channel whose queues are popped as the engine says."""

    from_transport_options = (*Channel.from_transport_options, "slots")
    #: The engine's slots, by the transport option of this name; operators' tools have none.
    slots: Any = None
    # What kombu's stubs leave out.
    connection: Any
    connection_errors: Any
    order: QueueOrder
    _get_pool: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Make a channel, and close the connection over which kombu pinged."""
        super().__init__(*args, **kwargs)
        self.async_pool.disconnect()

    def queue_order_strategy(self) -> QueueOrder:  # type: ignore[override]
        """Make the order of queues. Kombu calls this once it has set the transport's options."""
        self.order = QueueOrder(self.slots)
        return self.order

    @property
    def pool(self) -> Any:
        """The connections that all channels to a server share."""
        client = self.connection.client
        key = type(self), client.hostname, client.port or self.connection.default_port, client.virtual_host
        if key not in _pools:
            _pools[key] = self._get_pool()
        return _pools[key]

    @contextlib.contextmanager
    def conn_or_acquire(self, client: Any = None) -> Iterator[Any]:
        """Use one connection at a time: a burst of announcements leaves no others open."""
        with _ONE_AT_A_TIME, super().conn_or_acquire(client) as used:
            yield used

    def basic_cancel(self, consumer_tag: str) -> Any:
        """Stop consuming from a queue, which the waiting pop may name."""
        result = super().basic_cancel(consumer_tag)
        self.end_pop()
        return result

    def close(self) -> None:
        """Close the channel without waiting for a message."""
        self.end_pop()
        super().close()

    def end_pop(self) -> None:
        """Have the waiting pop be answered now, with a message or without."""
        if self.order.asked:
            self.order.asked, end = set(), self.order.end
            with contextlib.suppress(*self.connection_errors), self.conn_or_acquire() as client:
                # It expires, should a message have ended the pop before.
                client.pipeline(transaction=False).lpush(end, "").pexpire(end, 60_000).execute()

    def _brpop_read(self, **options: Any) -> Any:
        """Hand on the message that a pop answered; log and drop anything else.

        Nothing is lost by that: a turn's record names its next link, and reapers announce it again.
        """
        try:
            return super()._brpop_read(**options)  # type: ignore[misc]
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            log.error("message.refused", error=type(error).__name__)
            return True


class TurnsSentinelChannel(TurnsChannel, SentinelChannel):
    """A channel to the server that Sentinel names."""

    from_transport_options = (*SentinelChannel.from_transport_options, "slots")


class TurnsTransport(Transport):
    """A worker's transport to one server."""

    Channel = TurnsChannel
    brpop_timeout = POP_SECONDS
    channels: Any

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        """Register with the worker's loop, and end each pop that asks for the wrong queues."""
        super().register_with_event_loop(connection, loop)
        loop.on_tick.add(lambda: [each.end_pop() for each in self.channels if each.order.is_stale()])


class TurnsSentinelTransport(TurnsTransport, SentinelTransport):
    """A worker's transport to the server that Sentinel names."""

    Channel = TurnsSentinelChannel


_OURS: dict[Any, Any] = {Transport: TurnsTransport, SentinelTransport: TurnsSentinelTransport}


class TurnsConnection(Connection):
    """A connection with our transport, whatever its address. Sentinel's alternatives would lose a separate scheme."""

    def get_transport_cls(self) -> Any:
        """Return our subclass of the transport that the address names."""
        theirs = super().get_transport_cls()
        return _OURS.get(theirs, theirs)

    def Pool(self, limit: int | None = None, **_: Any) -> ConnectionPool:  # noqa: N802 - kombu's name
        """Return a pool of such connections."""
        return TurnsConnectionPool(self, limit)


class TurnsConnectionPool(ConnectionPool):
    """The connections that publish."""

    def new(self) -> Any:
        """Make a connection, with the transport of the one that the pool was made of."""
        made: Any = super().new()
        made.transport_cls = self.connection.get_transport_cls()
        return made


class TurnsAMQP(AMQP):
    """Has an application connect with our transport."""

    Connection = TurnsConnection
