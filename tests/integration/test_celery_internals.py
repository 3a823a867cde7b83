"""The binding to Celery and kombu still does what the engine relies on, with the installed release.

A release that changes one of these turns the test red that names it.
"""

import base64
import json
import threading
from collections.abc import Iterator
from operator import attrgetter
from queue import Empty
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from celery import bootsteps, chain
from celery.concurrency.base import BasePool
from celery.events.dispatcher import EventDispatcher
from celery.exceptions import InvalidTaskError
from celery.worker import state
from celery.worker.autoscale import Autoscaler
from celery.worker.request import Request
from kombu import Consumer, Producer, Queue
from kombu.asynchronous import Hub
from kombu.transport.redis import Channel, SentinelChannel, Transport

from api_client.broker.celery_message import celery_settings
from api_client.contract.settings import Settings
from api_client.contract.tasks import CHECK_QUEUE, PREFERRED_QUEUE, RUN, RUN_QUEUE, VALIDATE, ChainTask, build_chain
from tests.ports import free_port
from tests.support import wait_for
from worker.celery.application import TurnsApp, build_own_queue, expire_queue, worker_settings
from worker.celery.consumer_bridge import ConsumerBridge
from worker.celery.pool import TurnAutoscaler, TurnPool
from worker.celery.registration import register_tasks
from worker.celery.request import TaskRequest
from worker.celery.task_events import Task, TaskEvent
from worker.celery.transport import POP_SECONDS, TurnsChannel, TurnsSentinelTransport, TurnsTransport

TURN = "turn-" + "a" * 32


class Slots:
    """The engine's slots, as a test sets them."""

    def __init__(self) -> None:
        self.wanted: list[str] | None = None
        self.took = (taken := list[str]()).append
        self.taken = taken

    def queues_to_poll(self, queues: Any) -> list[str]:
        return [*queues] if self.wanted is None else [each for each in self.wanted if each in queues]

    def __json__(self) -> str:
        return "slots"


@pytest.fixture
def slots() -> Slots:
    return Slots()


@pytest.fixture
def app(settings: Settings, slots: Slots) -> Iterator[TurnsApp]:
    made = TurnsApp("internals", set_as_current=False)
    made.conf.update(celery_settings(settings) | worker_settings())
    made.conf.broker_transport_options = {**made.conf.broker_transport_options, "slots": slots}
    register_tasks(made)
    yield made
    state.reset_state()


@pytest.fixture
def store(settings: Settings) -> redis.Redis:
    return redis.Redis.from_url(settings.redis_url)


def announce(app: TurnsApp) -> list[str]:
    """Publish a turn's first chain as clients do; the ids of its tasks."""
    parts = [
        app.signature(item["name"], kwargs=item["kwargs"], queue=item["queue"], immutable=True)
        for item in build_chain(ChainTask(RUN, 1), TURN, "s")
    ]
    last = chain(*parts).apply_async(retry=False)
    return [last.parent.id, last.id]


class Consuming:
    """A worker's consumer; what comes is kept in ``got``."""

    def __init__(self, app: TurnsApp) -> None:
        self.got: list[Any] = []
        self.connection: Any = app.connection_for_read()
        self.consumer: Any = app.amqp.TaskConsumer(self.connection, on_message=self.got.append)

    def __enter__(self) -> "Consuming":
        self.consumer.consume()
        return self

    def __exit__(self, *_: object) -> None:
        self.consumer.close()
        self.connection.close()

    @property
    def channel(self) -> Any:
        return self.consumer.channel

    @property
    def ids(self) -> list[str]:
        return [message.headers["id"] for message in self.got]

    def drain(self, number: int) -> None:
        """Receive so many messages in all."""
        wait_for(lambda: self.connection.drain_events(timeout=60) or len(self.got) >= number)


OVERRIDDEN = [name for name in vars(TurnsChannel) if name.startswith("_") and not name.startswith("__")]


@pytest.mark.parametrize("channel", [Channel, SentinelChannel])
@pytest.mark.parametrize("name", [*OVERRIDDEN, "_get_pool"])
def test_what_we_override_without_a_document_is_still_there(name: str, channel: type) -> None:
    assert hasattr(channel, name), f"this kombu has no {channel.__name__}.{name}: see worker/celery/transport.py"


def test_nothing_else_of_kombus_is_used_without_a_document() -> None:
    assert OVERRIDDEN == ["_brpop_read"]


@pytest.mark.parametrize(
    ("ours", "theirs", "names"),
    [
        (TurnPool, BasePool, "on_start on_apply on_close on_stop terminate_job register_with_event_loop info"),
        (TaskRequest, Request, "acknowledge send_event cancel on_accepted revoked"),
        (TurnAutoscaler, Autoscaler, "qty"),
        (
            TurnsChannel,
            Channel,
            "queue_order_strategy pool conn_or_acquire basic_cancel close async_pool",
        ),
        (TurnsTransport, Transport, "brpop_timeout register_with_event_loop"),
    ],
)
def test_what_our_subclasses_override_is_still_asked_by_that_name(ours: type, theirs: type, names: str) -> None:
    assert issubclass(ours, theirs)
    lost = [name for name in names.split() if not hasattr(theirs, name)]
    assert not lost, f"{theirs.__module__}.{theirs.__name__} lost {lost}"


@pytest.mark.parametrize(
    ("url", "ours"),
    [
        ("redis://h:1/0", TurnsTransport),
        ("rediss://h:1/0", TurnsTransport),
        ("redis+socket:///run/v.sock", TurnsTransport),
        ("sentinel://a:1/0;sentinel://b:2/0", TurnsSentinelTransport),
    ],
)
def test_a_worker_connects_with_our_transport_however_the_broker_is_addressed(
    url: str, ours: type, app: TurnsApp
) -> None:
    connection: Any = app.connection_for_read(url)
    assert connection.get_transport_cls() is connection.clone().get_transport_cls() is ours
    assert connection.Pool(1).new().get_transport_cls() is ours
    if connection.alt:
        connection.switch(connection.alt[1])
        assert connection.get_transport_cls() is ours, "after a failover too"


def test_messages_come_in_the_engines_order_and_leave_nothing_to_acknowledge(
    app: TurnsApp, slots: Slots, settings: Settings, store: redis.Redis
) -> None:
    ids = [announce(app)[0], announce(app)[0]]
    app.send_task(RUN, task_id="first", kwargs={}, queue=PREFERRED_QUEUE)
    slots.wanted = [CHECK_QUEUE, PREFERRED_QUEUE, RUN_QUEUE]
    with Consuming(app) as worker:
        worker.drain(3)
        assert (worker.ids, slots.taken) == (["first", *ids], [PREFERRED_QUEUE, RUN_QUEUE, RUN_QUEUE])
        assert (worker.channel.brpop_timeout, worker.channel.order.popping) == (POP_SECONDS, set())
        announce(app)
        slots.wanted = []
        worker.connection.transport.cycle.on_poll_start()
        assert worker.channel.order.popping == set(), "no slot is free: nothing is asked for"
    assert store.keys(f"{settings.namespace}:celery:unacked*") == []


@pytest.mark.parametrize("item", ["no JSON", "{}", "[1]", '"text"', '{"body": "!", "properties": {}}'])
def test_what_is_no_message_is_dropped_and_the_next_one_comes(
    item: str, app: TurnsApp, settings: Settings, store: redis.Redis
) -> None:
    store.lpush(f"{settings.namespace}:celery:{RUN_QUEUE}", item)
    run_id, _ = announce(app)
    with Consuming(app) as worker:
        worker.drain(1)
        assert worker.ids == [run_id]


def test_a_tool_of_an_operator_has_no_slots_and_takes_what_comes(app: TurnsApp, settings: Settings) -> None:
    app.conf.broker_transport_options = celery_settings(settings)["broker_transport_options"]
    run_id, _ = announce(app)
    with Consuming(app) as tool:
        tool.drain(1)
        assert tool.ids == [run_id]


def test_a_pop_that_nothing_answers_says_so(app: TurnsApp, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TurnsTransport, "brpop_timeout", 0.05)
    with Consuming(app) as worker:
        worker.connection.transport.cycle.on_poll_start()
        with pytest.raises(Empty):
            worker.channel.handlers["BRPOP"]()


@pytest.mark.parametrize("waiting", [0, 1], ids=["nothing waits", "a message waits"])
def test_a_channel_that_closes_waits_for_no_message_and_loses_none(
    waiting: int, app: TurnsApp, settings: Settings, store: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TurnsTransport, "brpop_timeout", 600)
    app.conf.broker_transport_options = {**app.conf.broker_transport_options, "socket_timeout": 600}
    with Consuming(app) as worker:
        worker.connection.transport.cycle.on_poll_start()
        sent = [announce(app)[0] for _ in range(waiting)]
        closing = threading.Thread(target=worker.channel.close, daemon=True)
        closing.start()
        closing.join(60)
        if hangs := closing.is_alive():
            announce(app)  # a message ends the pop
        assert (hangs, worker.ids) == (False, sent)
    assert all(store.pttl(key) > 0 for key in store.scan_iter(f"{settings.namespace}:celery:end.*"))


def in_loop(worker: Consuming) -> Any:
    """The worker's loop, each of whose turns ends at once."""
    hub = Hub()
    worker.connection.register_with_event_loop(hub)
    loop = hub.create_loop()
    return hub, lambda: hub.call_soon(lambda: None) and next(loop)


def test_a_pop_is_ended_when_another_queue_has_a_slot_and_when_none_has_one(
    app: TurnsApp, slots: Slots, monkeypatch: pytest.MonkeyPatch
) -> None:
    slots.wanted = [CHECK_QUEUE]
    monkeypatch.setattr(TurnsTransport, "brpop_timeout", 600)
    with Consuming(app) as worker:
        hub, turn = in_loop(worker)
        wait_for(lambda: turn() or worker.channel.order.popping)
        announce(app)
        for _ in range(10):
            turn()
        assert (worker.got, worker.channel.order.popping) == ([], {CHECK_QUEUE})
        slots.wanted.append(RUN_QUEUE)
        wait_for(lambda: turn() or worker.got)
        slots.wanted.clear()
        wait_for(lambda: turn() or not worker.channel.order.popping)
        hub.close()


def test_a_queue_that_is_left_gives_no_message_more(
    app: TurnsApp, settings: Settings, store: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TurnsTransport, "brpop_timeout", 600)
    with Consuming(app) as worker:
        hub, turn = in_loop(worker)
        wait_for(lambda: turn() or worker.channel.order.popping)
        worker.consumer.cancel_by_queue(RUN_QUEUE)
        wait_for(lambda: turn() or worker.channel.order.popping == {CHECK_QUEUE, PREFERRED_QUEUE})
        announce(app)
        for _ in range(10):
            turn()
        assert (worker.got, store.llen(f"{settings.namespace}:celery:{RUN_QUEUE}")) == ([], 1)
        hub.close()


def test_the_queue_of_one_process_leaves_nothing_in_the_broker(
    app: TurnsApp, settings: Settings, store: redis.Redis
) -> None:
    queue, prefix = build_own_queue("worker-1-1@host"), f"{settings.namespace}:celery:"
    app.amqp.queues.add(queue)
    [item, _] = build_chain(ChainTask(RUN, 1), TURN, "s", worker="worker-1-1@host")
    app.send_task(item["name"], kwargs=item["kwargs"], queue=item["queue"])
    expire_queue(app, queue.name)
    assert list(store.scan_iter(f"{prefix}*")) == [(prefix + queue.name).encode()], "no binding"
    assert store.llen(prefix + queue.name) == 1
    assert 0 < int(store.pttl(prefix + queue.name)) <= 60_000  # type: ignore[arg-type]


# The pool and Celery's books.


class Taker:
    """An engine that only notes what it is given."""

    def __init__(self) -> None:
        self.pool_info: dict[str, int] = {}
        self.taken: list[Task] = []

    def start_task(self, task: Task) -> bool:
        if "turn_id" not in task.kwargs:
            raise KeyError("turn_id")
        self.taken.append(task)
        return True

    def resize(self, slots: int) -> None: ...


@pytest.fixture
def taker(app: TurnsApp) -> Taker:
    app.engine = made = Taker()  # type: ignore[assignment]
    return made


def consumer_of(app: TurnsApp, dispatcher: Any = None) -> Any:
    """A consumer as Celery's strategies ask it."""
    pool = TurnPool(2, app=app)
    running = SimpleNamespace(state=vars(bootsteps)["RUN"])
    return SimpleNamespace(
        app=app,
        hostname="w",
        pool=pool,
        event_dispatcher=dispatcher,
        connection_errors=(),
        timer=SimpleNamespace(call_at=None),
        disable_rate_limits=True,
        apply_eta_task=None,
        task_buckets=dict.fromkeys(app.tasks),
        on_task_request=lambda request: request.execute_using_pool(pool),
        _limit_task=None,
        _limit_post_eta=None,
        controller=SimpleNamespace(state=state, blueprint=running),
    )


def receive(app: TurnsApp, consumer: Any) -> None:
    """Receive a message, and have Celery's own strategy hand it to the pool."""
    with Consuming(app) as worker:
        worker.drain(1)
        [message] = worker.got
        app.tasks[message.headers["task"]].start_strategy(app, consumer)(message, None, None, None, [])


def test_the_pool_hands_a_message_to_the_engine_and_celery_knows_it_is_at_work(app: TurnsApp, taker: Taker) -> None:
    run_id, validate_id = announce(app)
    receive(app, consumer_of(app))
    [task] = taker.taken
    assert (task.name, task.task_id, task.root_id, task.parent_id) == (RUN, run_id, run_id, "")
    assert task.kwargs == {"turn_id": TURN, "attempt": 1, "session_id": "s"}
    [following] = task.chain
    assert (following["task"], following["options"]["task_id"]) == (VALIDATE, validate_id)
    assert [request.id for request in state.active_requests] == [run_id]


def test_a_message_that_is_no_links_is_refused_and_forgotten(app: TurnsApp, taker: Taker) -> None:
    app.send_task(RUN, kwargs={}, queue=RUN_QUEUE)
    with pytest.raises(InvalidTaskError):
        receive(app, consumer_of(app))
    assert (state.requests, len(state.reserved_requests)) == ({}, 0)


def test_a_link_in_place_is_a_task_in_the_books_until_it_ends(app: TurnsApp) -> None:
    bridge = ConsumerBridge(lambda: None)
    bridge.consumer = consumer_of(app)
    task = Task(name=VALIDATE, task_id="v", kwargs={"turn_id": TURN}, kwargs_text="{}", parent_id="r", root_id="r")
    bridge.send_events([TaskEvent("task-received", {"uuid": "v"}, task)])
    [request] = state.active_requests
    assert attrgetter("id", "name", "root_id", "parent_id", "kwargs")(request) == ("v", VALIDATE, "r", "r", task.kwargs)
    assert request.info()["name"] == VALIDATE
    bridge.send_events([TaskEvent("task-succeeded", {"uuid": "v"})])
    assert (state.requests, state.total_count[VALIDATE]) == ({}, 1)


def test_a_link_in_place_that_ended_at_once_is_counted_and_never_active(
    app: TurnsApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    bridge = ConsumerBridge(lambda: None)
    bridge.consumer = consumer_of(app)
    begun: list[str] = []
    monkeypatch.setattr(TaskRequest, "on_accepted", lambda request, *_: begun.append(request.id))
    task = Task(name=VALIDATE, task_id="v", kwargs={"turn_id": TURN}, kwargs_text="{}", parent_id="r", root_id="r")
    before = state.all_total_count[0]
    bridge.send_events([TaskEvent("task-received", {"uuid": "v"}, task), TaskEvent("task-failed", {"uuid": "v"})])
    assert (state.requests, begun, state.total_count[VALIDATE]) == ({}, [], 1)
    assert state.all_total_count[0] == before + 1


def test_a_cold_shutdown_calls_no_turn_off(app: TurnsApp, taker: Taker) -> None:
    announce(app)
    receive(app, consumer_of(app))
    [request] = state.active_requests
    request.cancel(None)
    assert list(state.active_requests) == [request]


# Events.


def gathering(app: TurnsApp, connection: Any) -> Any:
    """An event dispatcher as a worker's consumer has it."""
    options: Any = {"buffer_group": ["task"], "on_send_buffered": None}
    return EventDispatcher(connection, hostname="w", app=app, **options)


def listening_to(settings: Settings, store: redis.Redis) -> Any:
    listening = store.pubsub()
    listening.psubscribe(f"{settings.namespace}:celery:*celeryev*")
    wait_for(lambda: listening.get_message(timeout=1))
    return listening


def started(uuid: str, at: float = 100.0) -> TaskEvent:
    return TaskEvent("task-started", {"uuid": uuid, "timestamp": at})


def events_of(message: Any) -> Any:
    return json.loads(base64.b64decode(json.loads(message["data"])["body"]))


def test_events_are_sent_in_one_message_with_their_own_times_as_celery_makes_them(
    settings: Settings, app: TurnsApp, store: redis.Redis
) -> None:
    with app.connection_for_write() as connection:
        bridge = ConsumerBridge(lambda: None)
        bridge.consumer = consumer_of(app, dispatcher := gathering(app, connection))
        listening = listening_to(settings, store)
        bridge.send_events([started(f"u{n}", 100.0 + n) for n in range(20)])
        message = wait_for(lambda: (got := listening.get_message(timeout=1)) and got["data"] and got)
        assert message["channel"].endswith(b"task.multi")
        events = events_of(message)
        assert [(event["uuid"], event["timestamp"]) for event in events] == [(f"u{n}", 100.0 + n) for n in range(20)]
        dispatcher.send("task-started", uuid="u20", timestamp=120.0)
        dispatcher.flush()
        [celerys] = events_of(wait_for(lambda: listening.get_message(timeout=1)))
        assert {**events[-1], "uuid": "u20", "timestamp": 120.0, "clock": celerys["clock"]} == celerys
        assert events[-1]["clock"] == events[0]["clock"] + 19 < celerys["clock"]


def test_events_are_not_even_made_while_nobody_listens_and_not_sent_of_what_was_revoked(
    settings: Settings, app: TurnsApp, store: redis.Redis
) -> None:
    with app.connection_for_write() as connection:
        bridge = ConsumerBridge(lambda: None)
        bridge.consumer = consumer_of(app, dispatcher := gathering(app, connection))
        clock = dispatcher.clock.value
        bridge.send_events([started("unheard")])
        assert dispatcher.clock.value == clock
        listening = listening_to(settings, store)
        state.revoked.add("revoked")
        bridge.send_events([started("revoked"), started("heard")])
        message = wait_for(lambda: (got := listening.get_message(timeout=1)) and got["data"] and got)
        assert [event["uuid"] for event in events_of(message)] == ["heard"]


def test_events_are_kept_while_the_broker_is_away(
    settings: Settings, app: TurnsApp, store: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redis.retry.sleep", lambda _seconds: None)
    monkeypatch.setattr("kombu.utils.functional.sleep", lambda _seconds: None)
    bridge = ConsumerBridge(lambda: None)
    with app.connection_for_write() as connection:
        bridge.consumer = consumer_of(app, dispatcher := gathering(app, connection))
        there = dispatcher.producer
        dispatcher.producer = Producer(
            app.connection_for_write(f"redis://127.0.0.1:{free_port()}/0"), auto_declare=False
        )
        listening = listening_to(settings, store)
        bridge.send_events([started("kept")])
        dispatcher.producer = there
        bridge.send_events([started("next")])
        for uuid in ("kept", "next"):
            message = wait_for(lambda: (got := listening.get_message(timeout=1)) and got["data"] and got)
            assert [event["uuid"] for event in events_of(message)] == [uuid]


def test_a_listener_of_celerys_leaves_out_the_question_whether_anybody_listens(
    app: TurnsApp, store: redis.Redis
) -> None:
    got: list[Any] = []
    with app.connection_for_write() as connection, app.connection_for_read() as listening:
        bridge = ConsumerBridge(lambda: None)
        bridge.consumer = consumer_of(app, dispatcher := gathering(app, connection))
        queue = Queue("flowers", dispatcher.exchange, routing_key="#", auto_delete=True, durable=False)
        before = {client["id"] for client in store.client_list(_type="pubsub")}
        with Consumer(listening.channel(), [queue], on_message=got.append, no_ack=True):
            vars(listening.transport)["cycle"].on_poll_start()
            wait_for(lambda: {client["id"] for client in store.client_list(_type="pubsub")} - before)
            bridge.send_events([started("u")])
            wait_for(lambda: listening.drain_events(timeout=60) or got)
    [message] = got
    assert [event["uuid"] for event in message.payload] == ["u"]


def test_the_workers_loop_is_woken_from_any_thread_and_before_there_is_one(app: TurnsApp) -> None:
    woken: list[str] = []
    bridge = ConsumerBridge(lambda: woken.append("woken"))
    bridge.wake()
    hub = Hub()
    loop = hub.create_loop()
    bridge.hub = hub
    bridge.wake()
    wait_for(lambda: next(loop) or woken)
    thread = threading.Thread(target=lambda: [bridge.wake() for _ in range(1000)])
    thread.start()
    thread.join()
    wait_for(lambda: next(loop) or len(woken) > 1)
    hub.close()
    bridge.wake()


def test_the_consumers_blueprint_says_whether_messages_are_taken(app: TurnsApp) -> None:
    bridge = ConsumerBridge(lambda: None)
    assert (bridge.listens, bridge.queues) == (False, ())
    bridge.consumer = consumer_of(app)
    assert (bridge.listens, set(bridge.queues)) == (True, {RUN_QUEUE, PREFERRED_QUEUE, CHECK_QUEUE})
    bridge.consumer.controller.blueprint.state += 1
    assert not bridge.listens
