"""What ``celery_internals`` uses of Celery and kombu beyond their documents is still there, and still does that.

A new version of either that changes one of these turns the test red that names it.
"""

from __future__ import annotations

import base64
import json
import os
import select
from collections.abc import Iterator
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
from kombu.asynchronous import Hub
from kombu.transport.redis import Channel, Transport

from api_client.contract.settings import Settings
from api_client.contract.tasks import ALL_QUEUES, CHECK_QUEUE, RUN, RUN_QUEUE, VALIDATE, Link, celery_settings, chain_of
from tests.support import wait_for
from worker.turns.tasks.celery_internals import POP_SECONDS, STRATEGY, QueueOrder, Receiver, worker_settings
from worker.turns.tasks.registration import register
from worker.turns.tasks.task_events import Task

TURN = "t0-" + "a" * 32


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
    made.install(app, list)
    yield made
    QueueOrder.order = list
    QueueOrder.most = staticmethod(lambda _queues: 1)


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
        wait_for(lambda: connection.drain_events(timeout=5) or got)
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
        monkeypatch.setattr(QueueOrder, "order", staticmethod(lambda queues: [q for q in queues if q == CHECK_QUEUE]))
        monkeypatch.setattr(QueueOrder, "most", staticmethod(lambda queues: 7 if queues == [CHECK_QUEUE] else 0))
        channel._brpop_start(1)
        key = f"{settings.namespace}:celery:{CHECK_QUEUE}"
        assert asked == [("BLMPOP", 1, 1, key, "RIGHT", "COUNT", 7)], "one list, for there is one priority"
        channel._in_poll = None
        monkeypatch.setattr(QueueOrder, "order", staticmethod(lambda _queues: []))
        channel._brpop_start(1)
        assert (len(asked), channel._in_poll) == (1, None)
        monkeypatch.undo()


def test_brpop_read_hands_on_all_messages_of_a_pop_and_drops_what_is_none_of_them(
    settings: Settings, app: Celery, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    took: list[str] = []
    monkeypatch.setattr(QueueOrder, "most", staticmethod(lambda _queues: 4))
    monkeypatch.setattr(QueueOrder, "took", staticmethod(took.append))
    ids = [announce(app)[0]]
    queue = f"{settings.namespace}:celery:{RUN_QUEUE}"
    store = redis.Redis.from_url(settings.redis_url)
    store.lpush(queue, "no JSON")
    ids += [announce(app)[0] for _ in range(3)]
    got: list[str] = []
    with app.connection_for_read() as connection, app.amqp.TaskConsumer(connection) as consumer:
        consumer.on_message = lambda message: got.append(message.headers["id"])
        consumer.consume()
        wait_for(lambda: connection.drain_events(timeout=5) or got)
        assert (got, took) == (ids[:3], [RUN_QUEUE] * 4), "oldest first, by one pop"
        assert store.llen(queue) == 1
        wait_for(lambda: connection.drain_events(timeout=5) or len(got) > 3)
    assert got == ids


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


def test_transport_brpop_timeout_says_how_long_one_pop_waits(app: Celery, receiver: Receiver) -> None:
    with app.connection_for_read() as connection, app.amqp.TaskConsumer(connection) as consumer:
        consumer.consume()
        connection.transport.cycle.on_poll_start()  # type: ignore[attr-defined]
        assert consumer.channel.brpop_timeout == POP_SECONDS


def test_hub_add_reader_has_the_workers_loop_woken_by_a_pipe(receiver: Receiver) -> None:
    woken: list[str] = []
    receiver._on_wake = lambda: woken.append("woken")
    hub = Hub()
    dispatcher = SimpleNamespace(buffer_limit=24)
    receiver.connected(SimpleNamespace(hub=hub, event_dispatcher=dispatcher))
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
        options: Any = {"buffer_group": ["task"], "on_send_buffered": None}
        dispatcher: Any = EventDispatcher(connection, hostname="w", app=app, **options)
        receiver.connected(SimpleNamespace(hub=None, event_dispatcher=dispatcher))
        listening = redis.Redis.from_url(settings.redis_url).pubsub()
        listening.psubscribe(f"{settings.namespace}:celery:*celeryev*")
        wait_for(lambda: listening.get_message(timeout=1))
        receiver.send([("task-started", {"uuid": f"u{n}", "timestamp": 100.0 + n}) for n in range(60)])
        message = wait_for(lambda: listening.get_message(timeout=1, ignore_subscribe_messages=True))
        assert message["channel"].endswith(b"task.multi")
        events = json.loads(base64.b64decode(json.loads(message["data"])["body"]))
        assert [(event["uuid"], event["timestamp"]) for event in events] == [(f"u{n}", 100.0 + n) for n in range(60)]
        dispatcher.send("task-started", uuid="u60", timestamp=160.0)
        [celerys] = dispatcher._group_buffer.pop("task")
        assert {**events[-1], "uuid": "u60", "timestamp": 160.0, "clock": celerys["clock"]} == celerys
        assert events[-1]["clock"] == events[0]["clock"] + 59 < celerys["clock"]
        assert listening.get_message(timeout=0.2) is None


def test_the_consumers_blueprint_says_whether_messages_are_taken(receiver: Receiver) -> None:
    assert not receiver.listens
    running: int = vars(bootsteps)["RUN"]
    blueprint = SimpleNamespace(state=running)
    consumer = SimpleNamespace(hub=None, event_dispatcher=None, controller=SimpleNamespace(blueprint=blueprint))
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
    consumer = SimpleNamespace(hub=None, event_dispatcher=SimpleNamespace(buffer_limit=24), steps=[], app=nothing)
    step(consumer).start(consumer)
    assert consumer.event_dispatcher.buffer_limit > 24


def test_a_second_consumer_takes_the_messages_of_its_queue_by_a_pop_of_its_own(app: Celery, receiver: Receiver) -> None:
    got: list[str] = []
    with app.connection_for_read() as connection, app.amqp.TaskConsumer(connection) as first:
        worker = SimpleNamespace(
            app=app,
            connection=connection,
            task_consumer=first,
            on_decode_error=None,
            connection_errors=(),
            channel_errors=(),
            create_task_handler=lambda: lambda message: got.append(message.headers["task"]),
        )
        receiver.listen_apart(worker)
        first.on_message = lambda message: got.append(f"first {message.headers['task']}")
        first.consume()
        channels: set[Any] = vars(connection.transport)["cycle"]._channels
        [apart] = channels - {first.channel}
        assert (apart.active_queues, CHECK_QUEUE in first.channel.active_queues) == ([CHECK_QUEUE], False)
        for link in (Link(RUN, 1), Link(VALIDATE, 1)):
            [item, *_] = chain_of(link, TURN, "s")
            app.send_task(item["name"], kwargs=item["kwargs"], queue=item["queue"])
        wait_for(lambda: connection.drain_events(timeout=5) or len(got) == 2)
        assert sorted(got) == [f"first {RUN}", VALIDATE]
        [active_queues, active] = [Panel.data[name] for name in ("active_queues", "active")]
        told = active_queues(SimpleNamespace(consumer=worker))
        assert {queue["name"] for queue in told} == set(ALL_QUEUES)
        assert active(None) == []
        receiver.listen_no_more(worker)
        assert apart.closed


def test_inspect_active_shows_the_tasks_of_the_engine(app: Celery) -> None:
    receiver = Receiver(lambda: None)
    receiver.install(app, list, active=lambda: [{"id": "x"}])
    assert Panel.data["active"](None) == Panel.data["dump_active"](None, safe=True) == [{"id": "x"}]
