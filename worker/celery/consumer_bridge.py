"""The engine's access to Celery's consumer: its event loop, its queues and its task events."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

from celery.bootsteps import RUN  # type: ignore[attr-defined]
from celery.worker import state

from worker.celery.request import record_events
from worker.celery.task_events import TaskEvent


class ConsumerBridge:
    """Gives the engine access to the event loop, queues and task events of Celery's consumer.

    Attributes:
        hub: the worker's event loop. None before the first connection.
        consumer: Celery's consumer. None before the worker is ready.
    """

    def __init__(self, on_wake: Callable[[], object]) -> None:
        self._on_wake = on_wake
        self.hub: Any = None
        self.consumer: Any = None

    @property
    def listens(self) -> bool:
        """Return True while the worker takes messages."""
        return self.consumer is not None and self.consumer.controller.blueprint.state == RUN

    @property
    def queues(self) -> tuple[str, ...]:
        return tuple(self.consumer.app.amqp.queues.consume_from) if self.consumer else ()

    def wake(self) -> None:
        """Schedule the callback ``on_wake`` in Celery's event loop. Thread-safe."""
        if self.hub:
            with contextlib.suppress(OSError):  # the loop is closed already
                self.hub.call_soon(self._on_wake)

    def send_events(self, events: Sequence[TaskEvent]) -> None:
        """Record task events in Celery's worker state, and publish them in one message.

        Must be called in the worker's loop. Celery buffers events while the broker is away.
        """
        if self.consumer is None or not events:
            return
        dispatcher = self.consumer.event_dispatcher
        publishes = dispatcher and dispatcher.enabled and _has_listeners(dispatcher)
        record_events(events, self.consumer.app, self.consumer)
        if publishes:
            for event in events:
                if event.fields["uuid"] not in state.revoked:
                    dispatcher.send(event.kind, **event.fields)
            dispatcher.flush()


def _has_listeners(dispatcher: Any) -> bool:
    with contextlib.suppress(Exception):
        channel = dispatcher.producer.channel
        with channel.conn_or_acquire() as client:
            return bool(client.publish(f"{channel.keyprefix_fanout}{dispatcher.exchange.name}/task.multi", ""))
    return True
