"""The Celery application of a worker, with our transport and pool, and its settings."""

from __future__ import annotations

from typing import Any

from celery import Celery
from kombu import Queue

from api_client.contract.tasks import ALL_QUEUES, own_queue


class TurnsApp(Celery):
    """An application with our transport, whose tasks ``engine`` carries out once a worker starts."""

    amqp_cls = "worker.celery.transport:TurnsAMQP"
    engine: Any


def worker_settings() -> dict[str, Any]:
    """Return a worker's own settings. Messages are taken without acknowledgement: reapers announce lost turns again."""
    return {
        "task_queues": [Queue(name, routing_key=name, no_ack=True) for name in ALL_QUEUES],
        "worker_pool": "worker.celery.pool:TurnPool",
        "worker_autoscaler": "worker.celery.pool:TurnAutoscaler",
    }


def own_queue_of(worker: str) -> Queue:
    """Return the queue of one worker process, declared nowhere: a declaration would stay in the broker for ever."""
    name = own_queue(worker)
    return Queue(name, routing_key=name, no_ack=True, no_declare=True)


def expire_queue(app: Any, queue: str) -> None:
    """Have the broker drop a queue after a minute, should nobody take messages from it."""
    with app.pool.acquire(block=True) as connection, connection.default_channel.conn_or_acquire() as client:
        client.pexpire(queue, 60_000)  # the client puts the prefix before it
