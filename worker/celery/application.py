"""The Celery application of a worker process, and the Celery settings that only workers need."""

from __future__ import annotations

from typing import Any

from celery import Celery
from kombu import Queue

from api_client.contract.tasks import ALL_QUEUES, own_queue


class TurnsApp(Celery):
    """The Celery application of a worker, with our Redis transport."""

    amqp_cls = "worker.celery.transport:TurnsAMQP"
    engine: Any


def worker_settings() -> dict[str, Any]:
    """Return the Celery settings that only workers need.

    Queues have ``no_ack``, because reapers announce the turns of lost messages again.
    """
    return {
        "task_queues": [Queue(name, routing_key=name, no_ack=True) for name in ALL_QUEUES],
        "worker_pool": "worker.celery.pool:TurnPool",
        "worker_autoscaler": "worker.celery.pool:TurnAutoscaler",
        # A task that waits for its rate would block one worker, where no other can take it.
        "worker_disable_rate_limits": True,
    }


def build_own_queue(worker: str) -> Queue:
    """Return the private queue of a worker process."""
    name = own_queue(worker)
    return Queue(name, routing_key=name, no_ack=True, no_declare=True)


def expire_queue(app: Any, queue: str) -> None:
    """Tell the broker to delete a worker's private queue in one minute, in case the worker has died."""
    with app.pool.acquire(block=True) as connection, connection.default_channel.conn_or_acquire() as client:
        client.pexpire(queue, 60_000)  # the client adds the key prefix
