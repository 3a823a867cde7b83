"""All that reaches into Celery and kombu deeper than their documentation."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from queue import Empty
from typing import Any, ClassVar

import structlog
from celery import bootsteps
from celery.bootsteps import RUN  # type: ignore[attr-defined]
from celery.exceptions import InvalidTaskError
from celery.utils.time import utcoffset
from celery.worker.consumer.tasks import Tasks
from celery.worker.control import inspect_command
from kombu import Queue
from kombu.transport.redis import Channel, Transport
from kombu.utils.encoding import bytes_to_str
from kombu.utils.json import loads
from kombu.utils.scheduling import round_robin_cycle

from api_client.contract.tasks import ALL_QUEUES, own_queue
from worker.turns.tasks.message import ReceivedMessage, task_of
from worker.turns.tasks.task_events import TaskEvent

log = structlog.get_logger()

STRATEGY = f"{__name__}:strategy"
_START, _READ, _REGISTER, _POP = "_brpop_start", "_brpop_read", "register_with_event_loop", "BLMPOP"
_INIT, _POOL, _LEAVE = "__init__", "pool", "_disconnect_pools"
_kombus_register = Transport.register_with_event_loop
_kombus_init, _kombus_leave = Channel.__init__, getattr(Channel, _LEAVE)
_EVENTS = "task.multi"  # the routing key of task events that are sent together
#: How long a channel waits for a message by one command, in seconds: an idle worker asks less often.
POP_SECONDS = 10
#: A list that this process alone pops, besides the queues: what is put there ends the pop of a channel that closes.
_END = f"end.{secrets.token_hex(8)}"
_END_MS = 60_000


def worker_settings() -> dict[str, Any]:
    """Return what a worker's application is configured with besides what both sides share.

    Messages are taken without acknowledgement: the turn's record is what must survive, and reapers announce it again.
    """
    return {
        "task_queues": [Queue(name, routing_key=name, no_ack=True) for name in ALL_QUEUES],
        "worker_disable_prefetch": False,  # slots are the engine's; nothing is ever reserved in Celery
    }


def own_queue_of(worker: str) -> Queue:
    """The queue of one worker process, declared nowhere: a declaration would stay in the broker for ever."""
    name = own_queue(worker)
    return Queue(name, routing_key=name, no_ack=True, no_declare=True)


def expire(app: Any, queue: str) -> None:
    """Have the broker forget a queue that nobody takes messages from, soon."""
    with app.pool.acquire(block=True) as connection, connection.default_channel.conn_or_acquire() as client:
        client.pexpire(queue, _END_MS)  # the client puts the prefix before it


def strategy(task: Any, _app: Any, _consumer: Any) -> Callable[..., None]:
    """Celery's way to ask what becomes of a task's messages: they go to ``task.take``."""

    def handler(message: Any, _body: Any, *_: Any) -> None:
        try:
            task.take(task_of(message.headers, message.payload))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise InvalidTaskError(f"not a message for the engine: {error!r}") from error

    return handler


@dataclass(frozen=True, slots=True, kw_only=True)
class Intake:
    """How the engine takes messages.

    Attributes:
        order: those of some queues from which the next message may come, the first of them first.
        most: how many may be taken at once of queues in this order.
        took: hears from which queue each message was taken.
        takes: whether any are taken now; while not, messages that were asked for before go back to the front.
        active: the tasks that ``celery inspect active`` shows.
    """

    order: Callable[[Sequence[str]], list[str]] = list
    most: Callable[[Sequence[str]], int] = lambda _queues: 1
    took: Callable[[str], object] = str
    takes: Callable[[], bool] = lambda: True
    active: Callable[[], list[dict[str, Any]]] = list


class QueueOrder(round_robin_cycle):  # type: ignore[type-arg]
    """From which queues a channel takes its next messages. kombu makes it by its name: so it knows the engine by class.

    Attributes:
        intake: the engine's.
    """

    intake: ClassVar[Intake] = Intake()
    #: The handlers that ``strategy`` made, by their tasks' names.
    strategies: ClassVar[Mapping[str, Callable[..., None]]] = {}

    def consume(self, n: int | None) -> Any:
        """The queues, the first of them first; none: no message is taken."""
        return self.intake.order((self.items or [])[:n])

    def rotate(self, last_used: str) -> Any:
        """A message was taken from this queue."""
        self.intake.took(last_used)
        return super().rotate(last_used)


class Receiver:
    """The receiving side of this process's Celery worker, as the engine uses it."""

    def __init__(self, on_wake: Callable[[], object]) -> None:
        self._on_wake = on_wake
        self._woken, self._wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._consumer: Any = None

    def install(self, app: Any, intake: Intake) -> None:
        """Have ``app``'s worker take messages as ``intake`` says, and be woken by ``wake``."""
        receiver = self
        install_channels()
        Transport.brpop_timeout = POP_SECONDS
        self._answer_inspectors(intake.active)
        QueueOrder.intake = intake
        app.conf.broker_transport_options = {
            **app.conf.broker_transport_options,
            "queue_order_strategy": f"{__name__}:{QueueOrder.__name__}",
        }

        class WakeUpStep(bootsteps.StartStopStep):
            """Runs each time the consumer has a connection."""

            requires = (Tasks,)

            def start(self, c: Any) -> None:
                receiver.connected(c)

        app.steps["consumer"].add(WakeUpStep)

    def _answer_inspectors(self, active: Callable[[], list[dict[str, Any]]]) -> None:
        """Have ``celery inspect``, and so Flower, see the engine's tasks."""

        def say_active(_state: Any, **_: Any) -> list[dict[str, Any]]:
            """List of tasks currently being executed."""
            return active()

        inspect_command(name="active", alias="dump_active")(say_active)

    def connected(self, consumer: Any) -> None:
        """The worker's consumer has a connection, for the first time or again."""
        self._consumer = consumer
        QueueOrder.strategies = {
            name: handler for name, handler in consumer.strategies.items() if handler.__module__ == __name__
        }
        if consumer.hub:
            consumer.hub.add_reader(self._woken, self._on_readable)

    @property
    def listens(self) -> bool:
        """Return whether the worker still takes messages."""
        return self._consumer is not None and self._consumer.controller.blueprint.state == RUN

    def wake(self) -> None:
        """Have the worker's loop look around now. From any thread, and from signal handlers."""
        with contextlib.suppress(BlockingIOError):
            os.write(self._wake, b".")

    def send(self, events: Sequence[TaskEvent]) -> None:
        """Send task events in one message, kept while the broker is away. Only in the worker's loop, or after it.

        The broker keeps no message that nobody listens to. So none is made then.
        """
        dispatcher = getattr(self._consumer, "event_dispatcher", None)
        if dispatcher is None or not dispatcher.enabled or not events:
            return
        with contextlib.suppress(Exception):  # operators miss a line; no turn may fail for that
            heard = _heard(dispatcher)
            if heard is False:
                return
            shared = {"hostname": dispatcher.hostname, "utcoffset": utcoffset(), "pid": dispatcher.pid}
            forward = dispatcher.clock.forward
            made = [{**fields, **shared, "clock": forward(), "type": kind} for kind, fields in events]
            dispatcher._outbound_buffer.append((made, _EVENTS))  # noqa: SLF001  # its send takes twice the time
            if heard:
                dispatcher.flush()

    def _on_readable(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._woken, 65_536)
        self._on_wake()


def _heard(dispatcher: Any) -> bool | None:
    """Return whether anybody listens to task events; None while the broker is away."""
    with contextlib.suppress(Exception):
        channel = dispatcher.producer.channel
        topics = channel._get_publish_topics(dispatcher.exchange.name, _EVENTS)  # noqa: SLF001
        with channel.conn_or_acquire() as client:
            return bool(sum(client.publish(topic, "") for topic in topics))
    return None


def install_channels() -> None:
    """Have every channel take its messages as ``_ask`` and ``_hand_on`` do. Doing it twice changes nothing."""
    setattr(Channel, _START, _ask)
    setattr(Channel, _READ, _hand_on)
    setattr(Transport, _REGISTER, _register)
    setattr(Channel, _INIT, _init)
    setattr(Channel, _POOL, property(_pool))
    setattr(Channel, _LEAVE, _leave)


#: The connections for questions answered at once, of each kind of channel and server.
_pools: dict[tuple[type, str], Any] = {}


def _init(channel: Any, *args: Any, **kwargs: Any) -> None:
    """Make a channel, which closes the connection over which it pinged."""
    _kombus_init(channel, *args, **kwargs)
    channel.async_pool.disconnect()


def _pool(channel: Any) -> Any:
    """The connections of all channels to this server, of which one stays open: a burst of announcements leaves none."""
    if channel._pool is None:  # noqa: SLF001
        key = type(channel), channel.connection.client.as_uri(include_password=True)
        if key not in _pools:
            pool = _pools[key] = channel._get_pool()  # noqa: SLF001
            release = pool.release

            def released(connection: Any) -> None:
                release(connection)
                with pool._lock:  # noqa: SLF001
                    for each in pool._available_connections[:-1]:  # noqa: SLF001
                        each.disconnect()

            pool.release = released
        channel._pool = _pools[key]  # noqa: SLF001
        channel._sentinel_manager = None  # noqa: SLF001  # the pool's
    return channel._pool  # noqa: SLF001


def _leave(channel: Any) -> None:
    """Disconnect what is the channel's alone."""
    channel._pool = None  # noqa: SLF001
    _kombus_leave(channel)


def _register(transport: Any, connection: Any, hub: Any) -> None:
    """Register a connection with the hub, whose every tick then checks its channels only if one needs it.

    kombu checks all of them in each tick, which takes longer than to take a message.
    """
    others = set(hub.on_tick)
    _kombus_register(transport, connection, hub)
    [check_all] = hub.on_tick - others
    channels = transport.cycle._channels  # noqa: SLF001
    hub.on_tick.remove(check_all)
    hub.on_tick.add(lambda: None if all(map(_goes_on, channels)) else check_all())


def _goes_on(channel: Any) -> bool:
    """Ask for a channel's next messages if it waits for none; False if kombu has to check it."""
    if (channel.active_fanout_queues and not channel._in_listen) or not channel.qos.can_consume():  # noqa: SLF001
        return False
    queues = channel._queue_cycle.consume(None)  # noqa: SLF001
    if channel._in_poll and not channel.asked.issuperset(queues):  # noqa: SLF001
        channel.asked = set(queues)
        _end_pop(channel)
    if channel._in_poll or not queues:  # noqa: SLF001
        return True
    if connected := (channel, channel.client, "BRPOP") in channel.connection.cycle._chan_to_sock:  # noqa: SLF001
        _pop(channel, queues)
    return connected


def _ask(channel: Any, timeout: float | None = None) -> None:
    """Ask for the next messages of a channel's queues, by one blocking pop; for none while no slot is free."""
    if queues := channel._queue_cycle.consume(None):  # noqa: SLF001
        _pop(channel, queues, timeout)


def _pop(channel: Any, queues: Sequence[str], timeout: float | None = None) -> None:
    keys = [
        f"{channel.global_keyprefix}{channel._q_for_pri(queue, step)}"  # noqa: SLF001
        for step in channel.priority_steps
        for queue in queues
    ]
    keys.append(_end_of(channel))
    waits = channel.brpop_timeout if timeout is None else timeout
    channel._in_poll, channel._brpop_sent_at = channel.client.connection, time.monotonic()  # noqa: SLF001
    channel.asked = set(queues)
    channel._in_poll.send_command(_POP, waits or 0, len(keys), *keys, "RIGHT", "COUNT", QueueOrder.intake.most(queues))  # noqa: SLF001


def _end_of(channel: Any) -> str:
    """The key of the list that ends the channel's pop."""
    return f"{channel.global_keyprefix}{_END}.{id(channel)}"


def _end_pop(channel: Any) -> None:
    """Have the pop that waits be answered now, with a message or without."""
    key = f"{_END}.{id(channel)}"  # the client puts the prefix before it
    with contextlib.suppress(*channel.connection_errors), channel.conn_or_acquire() as client:
        client.pipeline(transaction=False).lpush(key, "").pexpire(key, _END_MS).execute()  # should messages come first


def _hand_on(channel: Any, **_: Any) -> bool:
    """Read what the pop answers, and hand each message to its consumer.

    kombu's own lets an item that is not JSON, or JSON of another shape, end the worker with every agent it runs.
    Nothing is lost by dropping it: a turn's record names its next link, and reapers announce that again.
    """
    if channel._closing:  # noqa: SLF001
        _end_pop(channel)
    connection = channel._in_poll or channel.client.connection  # noqa: SLF001
    try:
        reply = connection.read_response()
    except channel.connection_errors:
        connection.disconnect()  # the next look around makes a new one
        raise
    finally:
        channel._in_poll = None  # noqa: SLF001
        channel._flush_brpop_reauth()  # noqa: SLF001
    if not reply or bytes_to_str(reply[0]) == _end_of(channel):
        raise Empty
    key, items = reply
    name = bytes_to_str(key).removeprefix(channel.global_keyprefix)
    if not QueueOrder.intake.takes():
        lost = (*channel.connection_errors, channel.ResponseError)  # then a reaper announces the turn again
        with contextlib.suppress(*lost), channel.conn_or_acquire() as client:
            client.rpush(name, *reversed(items))  # a pop takes from this end
        return True
    queue = name.rsplit(channel.sep, 1)[0]
    for item in items:
        channel._queue_cycle.rotate(queue)  # noqa: SLF001
        try:
            _give(channel, item, queue)
        except (AttributeError, InvalidTaskError, KeyError, TypeError, ValueError) as error:
            log.error("message.refused", error=type(error).__name__)
    return True


def _give(channel: Any, item: bytes, queue: str) -> None:
    """Give a message to its task's handler; one that is not a turn's to kombu, which finds the consumer."""
    message = json.loads(item.decode())
    handler = QueueOrder.strategies.get(message["headers"]["task"])
    if handler and ReceivedMessage.reads(message):
        handler(ReceivedMessage(message), None)
    else:
        channel.connection._deliver(loads(item), queue)  # noqa: SLF001
