"""The yardstick's worker: ``run -> validate``, once or twice, in plain Celery. No record, no lease, no log.

Its Celery settings are ours, word for word, so the difference that is measured is the engine and not its queue.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Any

import redis
from celery import Celery, signals

from api_client.contract.settings import Settings, load
from api_client.contract.tasks import CHECK_QUEUE, RUN_QUEUE, celery_settings
from tests.bench.work import ACCEPTED, CHANNEL, ENDED, pieces


def create_app(settings: Settings) -> Celery:
    """A plain application with the options of our own."""
    made = Celery("plain", set_as_current=False)
    made.conf.update(celery_settings(settings) | {"worker_hijack_root_logger": True})
    return made


app = create_app(load())


@cache
def _store() -> redis.Redis:
    return redis.Redis.from_url(load().redis_url)


@app.task(name="plain.run", queue=RUN_QUEUE)
def run(_before: str, turn: str, answer: str) -> str:
    """The agent that does nothing: its answer is told to it."""
    return answer


@app.task(name="plain.validate", queue=CHECK_QUEUE)
def validate(text: str, turn: str, last: bool) -> str:
    """Look for the marker; after the last run publish the answer, else hand it to the next run."""
    if last and text == ACCEPTED:
        _store().publish(CHANNEL + turn, text)
    return text


@app.task(name="plain.stream", queue=RUN_QUEUE)
def stream(turn: str, count: int) -> None:
    """Publish a streamed answer as the simplest worker would: one message a piece."""
    for piece in pieces(count):
        _store().publish(CHANNEL + turn, piece)
    _store().publish(CHANNEL + turn, ENDED)


@signals.worker_ready.connect
def _on_ready(**_: Any) -> None:
    Path(os.environ["HELIX_AGENT_READY_FILE"]).touch()
