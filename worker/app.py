"""The Celery application of a worker process, which ``turns run worker`` starts."""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import structlog
from celery import signals

from api_client.broker.celery_message import celery_settings
from api_client.contract.errors import SettingsError
from api_client.contract.plugins import WATCHER, UnusablePlugin, find_plugins, make_plugin
from api_client.contract.settings import Settings, load_settings, require_store
from api_client.contract.tasks import RUN_QUEUE
from api_client.index.text_indexer import TextIndexer
from api_client.store import Store
from api_client.store.connection import SingleConnection
from api_client.store.unfinished_restore import refuse_unfinished_restore
from worker.celery.application import TurnsApp, build_own_queue, worker_settings
from worker.celery.registration import register_tasks
from worker.logs import configure_logging
from worker.observers import ObserverFeed
from worker.processes.isolated_tasks import IsolatedTasks
from worker.processes.program import CHECK_SLOTS_VARIABLE, REFUSED, SUPERVISED
from worker.turns.engine import Engine
from worker.turns.leases.replica_watch import ReplicaWatch
from worker.turns.loops.polling_loop import Watcher
from worker.turns.warm_agents import can_keep_agents
from worker.verification.gates.scratch import sweep_scratch

log = structlog.get_logger()

#: Variable with the file that this process touches regularly while it takes work; set by ``turns run worker``.
READY_FILE = "HELIX_AGENT_READY_FILE"


#: Thresholds of garbage collection. Python's default collects twice in every turn and finds next to nothing.
_COLLECT = (10_000, 20, 20)

#: Seconds for which the reply to `celery control revoke` waits until the store has the order.
_REVOKE_SECONDS = 10.0
#: Configuration key for the name that Celery gave this process.
_NAME = "helix_worker_name"


def create_app(settings: Settings) -> TurnsApp:
    celery = TurnsApp("helix-turns", set_as_current=False)
    celery.conf.update(celery_settings(settings) | worker_settings())
    register_tasks(celery)
    return celery


@cache
def settings_of_process() -> Settings:
    """Return the settings of this worker process, which are read and checked only once."""
    settings = require_store(load_settings())
    configure_logging(settings)
    try:
        refuse_unfinished_restore(settings)
    except SettingsError as error:
        sys.exit(REFUSED if os.environ.get(SUPERVISED) else f"turns: {error}")
    return settings


def plugin_watchers(settings: Settings, polling_loop: SingleConnection) -> Iterator[Watcher]:
    """Yield the watchers that plug-ins add to this process. Log and skip watchers that cannot be created."""
    for name in sorted(find_plugins(WATCHER)):
        try:
            made: Watcher | None = make_plugin(WATCHER, name, settings, polling_loop)
        except UnusablePlugin:
            log.exception("plugin.left_out", watcher=name)
            continue
        if made:
            yield made


@cache
def engine() -> Engine:
    """Return the engine of this process, creating it on the first call."""
    settings = settings_of_process()
    polling_loop = SingleConnection(settings)
    own = (ReplicaWatch(settings), ObserverFeed(settings, polling_loop), TextIndexer(Store(settings, polling_loop)))
    watchers = (*plugin_watchers(settings, polling_loop), *own)
    name, check_slots = app.conf.get(_NAME, ""), int(os.environ.get(CHECK_SLOTS_VARIABLE, "2"))
    return Engine(settings, app, IsolatedTasks(settings), watchers, polling_loop, name=name, check_slots=check_slots)


app = create_app(settings_of_process())


@signals.worker_init.connect
def _on_init(sender: Any, **_: Any) -> None:
    app.conf[_NAME] = sender.hostname
    queues = app.amqp.queues
    if RUN_QUEUE in queues.consume_from and can_keep_agents(settings_of_process()):
        queues.select_add(build_own_queue(sender.hostname))
    app.engine = engine()
    app.conf.broker_transport_options = {**app.conf.broker_transport_options, "slots": app.engine.slots}
    app.engine.start()


@signals.worker_ready.connect
def _on_ready(sender: Any, **_: Any) -> None:
    sweep_scratch()  # folders of verifications whose worker died
    ready = os.environ.get(READY_FILE)
    gc.freeze()  # exempt all loaded objects from garbage collection
    gc.set_threshold(*_COLLECT)
    engine().start_heartbeat(sender, Path(ready) if ready else None)


@signals.worker_shutting_down.connect
def _on_shutting_down(**_: Any) -> None:
    engine().shut_down()


@signals.task_unknown.connect
def _on_unknown(message: Any, name: str, **_: Any) -> None:
    engine().loop.start_work(lambda: engine().leave_task(name, message.payload[1]))


@signals.task_revoked.connect
def _on_revoked(request: Any, expired: bool, **_: Any) -> None:
    if not expired and (turn_id := request.kwargs.get("turn_id")):
        stored = threading.Event()
        engine().loop.start_work(lambda: engine().cancel_turn(turn_id, stored.set))
        stored.wait(_REVOKE_SECONDS)
