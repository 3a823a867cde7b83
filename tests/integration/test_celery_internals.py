"""What ``celery_internals`` uses of Celery and kombu beyond their documents is still there, and still does that.

A new version of either that changes one of these turns the test red that names it.
"""

import base64
import json
import os
import select
import threading
from collections.abc import Iterator
from dataclasses import replace
from operator import attrgetter
from queue import Empty
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from celery import Celery, bootsteps, chain
from celery.app.task import Task as CeleryTask
from celery.events.dispatcher import EventDispatcher
from celery.exceptions import InvalidTaskError
from celery.worker.control import Panel
from kombu import Consumer, Producer, Queue
from kombu.asynchronous import Hub
from kombu.transport.redis import Channel, Transport

from api_client.broker import celery_settings
from api_client.contract.settings import Settings
from api_client.contract.tasks import CHECK_QUEUE, RUN, RUN_QUEUE, VALIDATE, Link, chain_of
from tests.ports import free_port
from tests.support import wait_for
from worker.turns.tasks.celery_internals import (
    POP_SECONDS,
    STRATEGY,
    Intake,
    QueueOrder,
    Receiver,
    expire,
    own_queue_of,
    worker_settings,
)
from worker.turns.tasks.registration import register
from worker.turns.tasks.task_events import Task

TURN = "turn-" + "a" * 32


def takes_in(monkeypatch: pytest.MonkeyPatch, **how: Any) -> None:
    """Have this process take messages in another way."""
    monkeypatch.setattr(QueueOrder, "intake", replace(QueueOrder.intake, **how))


@pytest.fixture
def taken() -> list[Task]:
    return []


@pytest.fixture
def app(settings: Settings, taken: list[Task]) -> Celery:
    made = Celery("internals", set_as_current=False)
    made.conf.update(celery_settings(settings) | worker_settings())
    register(made, taken.append)
    return made


@pytest.fixture
def receiver(app: Celery) -> Iterator[Receiver]:
    made = Receiver(lambda: None)
    made.install(app, Intake())
    yield made
    QueueOrder.intake = Intake()
    QueueOrder.strategies = {}


def announce(app: Celery) -> list[str]:
    """Publish a turn's first chain as clients do; the ids of its tasks."""
    parts = [
        app.signature(item["name"], kwargs=item["kwargs"], queue=item["queue"], immutable=True)
        for item in chain_of(Link(RUN, 1), TURN, "s")
    ]
    last = chain(*parts).apply_async(retry=False)
    return [last.parent.id, last.id]


def received(app: Celery) -> list[Any]:
    """The messages a worker's consumer gets, each handed to the strategy of its task."""
    handlers = {name: task.start_strategy(app, None) for name, task in app.tasks.items() if name in (RUN, VALIDATE)}
    got: list[Any] = []

    def on_message(message: Any) -> None:
        got.append(message)
        handlers[message.headers["task"]](message, None, None, None, [])

    with app.connection_for_read() as connection, app.amqp.TaskConsumer(connection) as consumer:
        consumer.on_message = on_message
        consumer.consume()
        wait_for(lambda: connection.drain_events(timeout=60) or got)
    return got


def test_task_strategy_is_asked_what_becomes_of_a_message(app: Celery, receiver: Receiver, taken: list[Task]) -> None:
    assert app.tasks[RUN].Strategy == STRATEGY != CeleryTask.Strategy
    run_id, validate_id = announce(app)
    received(app)
    [task] = taken
    assert (task.name, task.task_id, task.root_id, task.parent_id) == (RUN, run_id, run_id, "")
    assert task.kwargs == {"turn_id": TURN, "attempt": 1, "session_id": "s"}
    [following] = task.chain
    assert (following["task"], following["options"]["task_id"]) == (VALIDATE, validate_id)


def test_task_strategy_may_refuse_a_message_that_is_none_of_ours(app: Celery) -> None:
    handler = app.tasks[RUN].start_strategy(app, None)
    message = SimpleNamespace(headers={"task": RUN, "id": "x"}, payload=([], {"turn_id": TURN}, None))
    with pytest.raises(InvalidTaskError):
        handler(message, None, None, None, [])


def test_queue_no_ack_leaves_nothing_to_acknowledge(settings: Settings, app: Celery, receiver: Receiver) -> None:
    announce(app)
    received(app)
    left = redis.Redis.from_url(settings.redis_url).keys(f"{settings.namespace}:celery:unacked*")
    assert left == []


def test_queue_order_strategy_says_from_which_queues_the_next_message_is_taken(
    settings: Settings, app: Celery, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[Any, ...]] = []

    def tell(*words: Any) -> None:
        asked.append(words)

    with app.connection_for_read() as connection, app.amqp.TaskConsumer(connection) as consumer:
        consumer.consume()
        channel = consumer.channel
        assert isinstance(channel._queue_cycle, QueueOrder)
        monkeypatch.setitem(vars(channel), "client", SimpleNamespace(connection=SimpleNamespace(send_command=tell)))
        checks = [CHECK_QUEUE]
        takes_in(monkeypatch, order=lambda _queues: checks, most=lambda queues: 7 if queues == checks else 0)
        channel._brpop_start(1)
        key = f"{settings.namespace}:celery:{CHECK_QUEUE}"
        [words] = asked
        assert (*words[:4], *words[5:]) == ("BLMPOP", 1, 2, key, "RIGHT", "COUNT", 7), "one list and the one to end by"
        channel._in_poll = None
        takes_in(monkeypatch, order=lambda _queues: [])
        channel._brpop_start(1)
        assert (len(asked), channel._in_poll) == (1, None)
        monkeypatch.undo()


def test_brpop_read_hands_on_all_messages_of_a_pop_and_drops_what_is_none_of_them(
    settings: Settings, app: Celery, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    took: list[str] = []
    takes_in(monkeypatch, most=lambda _queues: 4)
    takes_in(monkeypatch, took=took.append)
    ids = [announce(app)[0]]
    queue = f"{settings.namespace}:celery:{RUN_QUEUE}"
    store = redis.Redis.from_url(settings.redis_url)
    store.lpush(queue, "no JSON")
    ids += [announce(app)[0] for _ in range(3)]
    got: list[str] = []
    with app.connection_for_read() as connection, app.amqp.TaskConsumer(connection) as consumer:
        consumer.on_message = lambda message: got.append(message.headers["id"])
        consumer.consume()
        wait_for(lambda: connection.drain_events(timeout=60) or got)
        assert (got, took) == (ids[:3], [RUN_QUEUE] * 4), "oldest first, by one pop"
        assert store.llen(queue) == 1
        wait_for(lambda: connection.drain_events(timeout=60) or len(got) > 3)
    assert got == ids


def test_strategies_of_the_consumer_get_a_turns_message_as_kombu_would_read_it_and_kombu_all_others(
    app: Celery, receiver: Receiver, taken: list[Task], monkeypatch: pytest.MonkeyPatch
) -> None:
    @app.task(name="theirs")  # type: ignore[untyped-decorator]
    def theirs() -> None: ...

    strategies = {name: app.tasks[name].start_strategy(app, SimpleNamespace()) for name in (RUN, VALIDATE)}
    receiver.connected(SimpleNamespace(hub=None, event_dispatcher=None, strategies=strategies | {"theirs": print}))
    takes_in(monkeypatch, most=lambda _queues: 4)
    got: list[Any] = []
    with app.connection_for_read() as connection, app.amqp.TaskConsumer(connection) as consumer:
        consumer.on_message = got.append
        consumer.consume()
        announce(app)
        theirs.apply_async(queue=RUN_QUEUE)
        app.send_task(
            RUN, kwargs={"turn_id": TURN, "attempt": 1, "session_id": "s"}, queue=RUN_QUEUE, compression="zlib"
        )
        wait_for(lambda: connection.drain_events(timeout=60) or len(got) == 2)
    assert [message.headers["task"] for message in got] == ["theirs", RUN]
    QueueOrder.strategies = {}
    announce(app)
    received(app)
    quick, slow = taken
    shown = attrgetter("name", "kwargs", "args_text", "kwargs_text", "parent_id")
    assert shown(quick) == shown(slow)
    assert [step["task"] for step in quick.chain] == [step["task"] for step in slow.chain]


def test_brpop_read_puts_messages_back_to_the_front_while_none_is_taken(
    settings: Settings, app: Celery, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [announce(app)[0] for _ in range(3)]
    got: list[str] = []
    with app.connection_for_read() as connection, app.amqp.TaskConsumer(connection) as consumer:
        consumer.on_message = lambda message: got.append(message.headers["id"])
        consumer.consume()
        takes_in(monkeypatch, most=lambda _queues: 2)
        takes_in(monkeypatch, takes=lambda: False)
        vars(connection.transport)["cycle"].on_poll_start()
        assert consumer.channel._brpop_read()
        takes_in(monkeypatch, takes=lambda: True)
        assert redis.Redis.from_url(settings.redis_url).llen(f"{settings.namespace}:celery:{RUN_QUEUE}") == 3
        wait_for(lambda: connection.drain_events(timeout=60) or len(got) == 3)
    assert got == ids, "in the order in which they were announced"


def test_brpop_read_says_that_nothing_came(app: Celery, receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Transport, "brpop_timeout", 0.05)
    with app.connection_for_read() as connection, app.amqp.TaskConsumer(connection) as consumer:
        consumer.consume()
        channel = consumer.channel
        vars(connection.transport)["cycle"].on_poll_start()
        assert channel._in_poll
        with pytest.raises(Empty):
            channel._brpop_read()
        assert not channel._in_poll


@pytest.mark.parametrize("waiting", [0, 1], ids=["nothing waits", "a message waits"])
def test_a_channel_that_closes_ends_its_pop_and_loses_no_message(
    waiting: int, settings: Settings, app: Celery, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Transport, "brpop_timeout", 600)
    app.conf.broker_transport_options = {**app.conf.broker_transport_options, "socket_timeout": 600}
    got: list[str] = []
    store = redis.Redis.from_url(settings.redis_url)
    with app.connection_for_read() as connection, app.amqp.TaskConsumer(connection) as consumer:
        consumer.on_message = lambda message: got.append(message.headers["id"])
        consumer.consume()
        vars(connection.transport)["cycle"].on_poll_start()
        sent = [announce(app)[0] for _ in range(waiting)]
        closing = threading.Thread(target=consumer.channel.close, daemon=True)
        closing.start()
        closing.join(60)
        if hangs := closing.is_alive():
            announce(app)  # a message ends the pop
        assert (hangs, got) == (False, sent)
    assert all(store.pttl(key) > 0 for key in store.scan_iter(f"{settings.namespace}:celery:end.*"))


def test_transport_brpop_timeout_says_how_long_one_pop_waits(app: Celery, receiver: Receiver) -> None:
    with app.connection_for_read() as connection, app.amqp.TaskConsumer(connection) as consumer:
        consumer.consume()
        connection.transport.cycle.on_poll_start()  # type: ignore[attr-defined]
        assert consumer.channel.brpop_timeout == POP_SECONDS


def test_hub_add_reader_has_the_workers_loop_woken_by_a_pipe(receiver: Receiver) -> None:
    woken: list[str] = []
    receiver._on_wake = lambda: woken.append("woken")
    hub = Hub()
    receiver.connected(SimpleNamespace(hub=hub, event_dispatcher=None, strategies={}))
    receiver.wake()
    loop = hub.create_loop()
    wait_for(lambda: next(loop) or woken)
    assert woken == ["woken"]
    assert not select.select([receiver._woken], [], [], 0)[0], "the pipe was read empty"
    hub.close()


def test_waking_never_blocks_however_often_it_is_done(receiver: Receiver) -> None:
    for _ in range(100_000):
        receiver.wake()
    assert os.read(receiver._woken, 1)


def test_event_dispatcher_sends_gathered_events_in_one_message_with_their_own_times(
    settings: Settings, app: Celery, receiver: Receiver
) -> None:
    with app.connection_for_write() as connection:
        dispatcher = gathering(app, connection)
        receiver.connected(SimpleNamespace(hub=None, event_dispatcher=dispatcher, strategies={}))
        listening = redis.Redis.from_url(settings.redis_url).pubsub()
        listening.psubscribe(f"{settings.namespace}:celery:*celeryev*")
        wait_for(lambda: listening.get_message(timeout=1))
        receiver.send([("task-started", {"uuid": f"u{n}", "timestamp": 100.0 + n}) for n in range(60)])
        asked, message = [
            wait_for(lambda: listening.get_message(timeout=1, ignore_subscribe_messages=True)) for _ in range(2)
        ]
        assert (asked["data"], asked["channel"]) == (b"", message["channel"]), "whether anybody listens"
        assert message["channel"].endswith(b"task.multi")
        events = json.loads(base64.b64decode(json.loads(message["data"])["body"]))
        assert [(event["uuid"], event["timestamp"]) for event in events] == [(f"u{n}", 100.0 + n) for n in range(60)]
        dispatcher.send("task-started", uuid="u60", timestamp=160.0)
        [celerys] = dispatcher._group_buffer.pop("task")
        assert {**events[-1], "uuid": "u60", "timestamp": 160.0, "clock": celerys["clock"]} == celerys
        assert events[-1]["clock"] == events[0]["clock"] + 59 < celerys["clock"]
        assert listening.get_message(timeout=0.2) is None


def gathering(app: Celery, connection: Any) -> Any:
    """An event dispatcher as a worker's consumer has it."""
    options: Any = {"buffer_group": ["task"], "on_send_buffered": None}
    return EventDispatcher(connection, hostname="w", app=app, **options)


def test_event_dispatcher_gets_no_events_while_nobody_listens(
    settings: Settings, app: Celery, receiver: Receiver
) -> None:
    with app.connection_for_write() as connection:
        dispatcher = gathering(app, connection)
        receiver.connected(SimpleNamespace(hub=None, event_dispatcher=dispatcher, strategies={}))
        clock = dispatcher.clock.value
        receiver.send([("task-started", {"uuid": "unheard"})])
        assert (dispatcher.clock.value, list(dispatcher._outbound_buffer)) == (clock, []), "not even made"
        listening = redis.Redis.from_url(settings.redis_url).pubsub()
        listening.psubscribe(f"{settings.namespace}:celery:*celeryev*")
        wait_for(lambda: listening.get_message(timeout=1))
        receiver.send([("task-started", {"uuid": "heard"})])
        message = wait_for(lambda: (got := listening.get_message(timeout=1)) and got["data"] and got)
        [event] = json.loads(base64.b64decode(json.loads(message["data"])["body"]))
        assert event["uuid"] == "heard"


def test_event_dispatcher_keeps_events_while_the_broker_is_away(
    app: Celery, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    with app.connection_for_write() as connection:
        dispatcher = gathering(app, connection)
    monkeypatch.setattr("redis.retry.sleep", lambda _seconds: None)
    monkeypatch.setattr("kombu.utils.functional.sleep", lambda _seconds: None)
    with app.connection_for_write(f"redis://127.0.0.1:{free_port()}/0") as away:
        dispatcher.connection, dispatcher.producer = away, Producer(away, auto_declare=False)
        receiver.connected(SimpleNamespace(hub=None, event_dispatcher=dispatcher, strategies={}))
        receiver.send([("task-started", {"uuid": "kept"})])
        [([event], routing_key)] = dispatcher._outbound_buffer
        assert (event["uuid"], routing_key) == ("kept", "task.multi")


def test_channel_receive_one_leaves_out_a_message_with_nothing_in_it(
    settings: Settings, app: Celery, receiver: Receiver
) -> None:
    got: list[Any] = []
    with app.connection_for_write() as connection, app.connection_for_read() as listening:
        dispatcher = gathering(app, connection)
        receiver.connected(SimpleNamespace(hub=None, event_dispatcher=dispatcher, strategies={}))
        queue = Queue("flowers", dispatcher.exchange, routing_key="#", auto_delete=True, durable=False)
        store = redis.Redis.from_url(settings.redis_url)
        before = {client["id"] for client in store.client_list(_type="pubsub")}
        with Consumer(listening.channel(), [queue], on_message=got.append, no_ack=True):
            vars(listening.transport)["cycle"].on_poll_start()
            wait_for(lambda: {client["id"] for client in store.client_list(_type="pubsub")} - before)
            receiver.send([("task-started", {"uuid": "u"})])
            wait_for(lambda: listening.drain_events(timeout=60) or got)
    [message] = got
    assert [event["uuid"] for event in message.payload] == ["u"]


def test_register_with_event_loop_has_the_channels_checked_only_when_one_needs_it(
    app: Celery, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    got: list[str] = []
    checked: list[str] = []
    free = [1]
    takes_in(monkeypatch, order=lambda queues: queues if free else [])
    hub = Hub()
    receiver.connected(SimpleNamespace(hub=hub, event_dispatcher=None, strategies={}))
    with app.connection_for_read() as connection, app.amqp.TaskConsumer(connection) as consumer:
        consumer.on_message = lambda message: got.append(message.headers["id"])
        consumer.consume()
        cycle = vars(connection.transport)["cycle"]
        check_all = cycle.on_poll_start
        monkeypatch.setattr(cycle, "on_poll_start", lambda: (checked.append("checked"), check_all()))
        connection.register_with_event_loop(hub)
        loop = hub.create_loop()

        def turns() -> int:
            """How often the channels are checked while the loop turns ten times."""
            before = len(checked)
            for _ in range(10):
                receiver.wake()
                next(loop)
            return len(checked) - before

        assert (turns(), turns()) == (1, 0), "a pop stands"
        ids = [announce(app)[0]]
        wait_for(lambda: next(loop) or got == ids)
        assert (turns(), bool(consumer.channel._in_poll)) == (0, True), "the next pop stands"
        free.clear()
        ids.append(announce(app)[0])
        wait_for(lambda: next(loop) or got == ids)
        ids.append(announce(app)[0])
        assert (turns(), got) == (0, ids[:2]), "no slot is free"
        free.append(1)
        wait_for(lambda: receiver.wake() or next(loop) or got == ids)
        turns()
        consumer.channel._in_poll.disconnect()
        assert turns() == 1, "the connection is lost"
        ids.append(announce(app)[0])
        wait_for(lambda: receiver.wake() or next(loop) or got == ids)
        other: Any = connection.channel()
        other._fanout_queues["orders"] = ("e", "")
        assert turns() == 0, "another channel, of which nothing is asked"
        other.active_fanout_queues.add("orders")
        assert (turns(), turns()) == (1, 0), "it has to subscribe"
    hub.close()


def test_the_consumers_blueprint_says_whether_messages_are_taken(receiver: Receiver) -> None:
    assert not receiver.listens
    running: int = vars(bootsteps)["RUN"]
    blueprint = SimpleNamespace(state=running)
    controller = SimpleNamespace(blueprint=blueprint)
    consumer = SimpleNamespace(hub=None, event_dispatcher=None, strategies={}, controller=controller)
    receiver.connected(consumer)
    assert receiver.listens
    blueprint.state = running + 1
    assert not receiver.listens


def test_brpop_read_drops_what_is_no_message(settings: Settings, app: Celery, receiver: Receiver) -> None:
    store = redis.Redis.from_url(settings.redis_url)
    store.lpush(f"{settings.namespace}:celery:{RUN_QUEUE}", "{}", "[1]", "no JSON")
    announce(app)
    assert [message.headers["task"] for message in received(app)] == [RUN]
    assert [vars(Channel)[name].__module__ for name in ("_brpop_start", "_brpop_read")] == [QueueOrder.__module__] * 2


def test_a_step_of_the_consumer_is_told_of_each_connection(app: Celery, receiver: Receiver) -> None:
    [step] = app.steps["consumer"]
    assert issubclass(step, bootsteps.StartStopStep)
    nothing = SimpleNamespace(amqp=SimpleNamespace(queues=SimpleNamespace(consume_from={})))
    consumer = SimpleNamespace(hub=None, event_dispatcher=None, strategies={}, steps=[], app=nothing)
    step(consumer).start(consumer)
    assert receiver._consumer is consumer


def test_a_pop_that_waits_for_answers_alone_is_ended_when_a_slot_for_agents_is_free(
    app: Celery, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted, got = [CHECK_QUEUE], list[str]()
    takes_in(monkeypatch, order=lambda queues: [each for each in wanted if each in queues])
    monkeypatch.setattr(Transport, "brpop_timeout", 600)
    hub = Hub()
    receiver.connected(SimpleNamespace(hub=hub, event_dispatcher=None, strategies={}))
    with app.connection_for_read() as connection, app.amqp.TaskConsumer(connection) as consumer:
        consumer.on_message = lambda message: got.append(message.headers["task"])
        consumer.consume()
        connection.register_with_event_loop(hub)
        loop = hub.create_loop()
        channel: Any = consumer.channel
        wait_for(lambda: receiver.wake() or next(loop) or channel._in_poll)
        announce(app)
        for _ in range(10):
            receiver.wake()
            next(loop)
        assert (got, channel.asked) == ([], {CHECK_QUEUE})
        wanted.append(RUN_QUEUE)
        wait_for(lambda: receiver.wake() or next(loop) or got)
        assert (got, channel.asked) == ([RUN], {CHECK_QUEUE, RUN_QUEUE})
    hub.close()


def test_the_queue_of_one_process_leaves_nothing_in_the_broker(app: Celery, settings: Settings) -> None:
    queue, prefix = own_queue_of("worker-1-1@host"), f"{settings.namespace}:celery:"
    app.amqp.queues.add(queue)
    [item, _] = chain_of(Link(RUN, 1), TURN, "s", worker="worker-1-1@host")
    app.send_task(item["name"], kwargs=item["kwargs"], queue=item["queue"])
    expire(app, queue.name)
    with redis.Redis.from_url(settings.redis_url, decode_responses=True) as store:
        assert list(store.scan_iter(f"{prefix}*")) == [prefix + queue.name], "no binding"
        assert store.llen(prefix + queue.name) == 1
        assert 0 < int(store.pttl(prefix + queue.name)) <= 60_000  # type: ignore[arg-type]


def test_inspect_active_shows_the_tasks_of_the_engine(app: Celery) -> None:
    receiver = Receiver(lambda: None)
    receiver.install(app, Intake(active=lambda: [{"id": "x"}]))
    assert Panel.data["active"](None) == Panel.data["dump_active"](None, safe=True) == [{"id": "x"}]
