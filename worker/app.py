"""The Celery application of a worker. Run it with ``turns worker``."""

from __future__ import annotations

import contextlib
import os
import sys
from functools import cache
from pathlib import Path
from typing import Any

import structlog
from celery import Celery, signals
from celery.bootsteps import RUN  # type: ignore[attr-defined]
from celery.worker import state

from api_client.contract.errors import SettingsError
from api_client.contract.settings import Settings, load, require_store
from api_client.contract.tasks import celery_settings
from worker.logs import configure_logging
from worker.turns.engine import Engine
from worker.turns.leases.pulse import Work
from worker.turns.messages import drop_what_is_none, listen_only_while
from worker.turns.record.store import require_shards
from worker.turns.tasks import register
from worker.verification.scratch import sweep

log = structlog.get_logger()

#: Set by ``turns worker``: a file that is touched once this process takes work, and again as long as it does.
READY_FILE = "HELIX_AGENT_READY_FILE"


#: The consumer of this worker, once it is ready: it has the dispatcher of task events, another after each reconnect.
_CONSUMER: dict[str, Any] = {}


def create_app(settings: Settings) -> Celery:
    """The Celery application of a worker with these settings."""
    drop_what_is_none()
    listen_only_while(_takes_messages)
    celery = Celery("helix-turns", set_as_current=False)
    celery.conf.update(celery_settings(settings))
    register(celery, lambda: engine().service, _report)
    return celery


def _takes_messages() -> bool:
    """Whether this machine can carry out turns. Asked before the engine is made, too."""
    return not (engine.cache_info().currsize and engine().host.sick)


def _report(kind: str, task_id: str, words: str) -> None:
    """Send a task event the way Celery sends its own: kept while the broker is away, and never in a task's way."""
    dispatcher = getattr(_CONSUMER.get("worker"), "event_dispatcher", None)
    if dispatcher is not None:
        with contextlib.suppress(Exception):  # operators miss a line; a turn must not fail for that
            dispatcher.send(kind, uuid=task_id, result=words)


@cache
def settings_of_process() -> Settings:
    """The settings of this process, read once."""
    settings = require_store(load())
    configure_logging(settings)
    try:
        require_shards(settings)
    except SettingsError as error:
        sys.exit(f"turns: {error}")
    return settings


@cache
def engine() -> Engine:
    """The engine of this process, made when the worker starts."""
    return Engine(settings_of_process(), app)


app = create_app(settings_of_process())


def _nothing() -> None:
    """For a loop that is only to wake."""


@signals.worker_ready.connect
def _on_ready(sender: Any, **_: Any) -> None:
    _CONSUMER["worker"] = sender
    sweep()  # what verifications left that died with their worker
    engine().start()
    work = Work(
        name=engine().name,
        queues=tuple(sender.app.amqp.queues.consume_from),
        slots=sender.pool.limit,
        taken=lambda: state.all_total_count[0],
        busy=lambda: len(state.reserved_requests),
        listens=lambda: sender.controller.blueprint.state == RUN,
        # The loop sees that it shall stop only when it wakes, and it sleeps for a second or more.
        wake=lambda: sender.hub.call_soon(_nothing),
        lease_round=lambda: engine().leases.worst_round,
    )
    log.info("worker.ready", worker=work.name, queues=work.queues, slots=work.slots)
    ready = os.environ.get(READY_FILE)
    engine().show_pulse(work, Path(ready) if ready else None)


@signals.worker_shutting_down.connect
def _on_shutting_down(**_: Any) -> None:
    engine().shut_down()


@signals.worker_shutdown.connect
def _on_shutdown(**_: Any) -> None:
    engine().close()
