"""The Celery side of this process, as the engine uses it: wakes the worker's loop, and reports on tasks."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

from celery.bootsteps import RUN  # type: ignore[attr-defined]
from celery.worker import state

from worker.celery.request import note
from worker.celery.task_story import TaskEvent


class Receiver:
    """Celery's ``hub`` and ``consumer``, once there is a connection. ``on_wake`` runs in its loop."""

    def __init__(self, on_wake: Callable[[], object]) -> None:
        self._on_wake = on_wake
        self.hub: Any = None
        self.consumer: Any = None

    @property
    def listens(self) -> bool:
        """Return whether the worker still takes messages."""
        return self.consumer is not None and self.consumer.controller.blueprint.state == RUN

    @property
    def queues(self) -> tuple[str, ...]:
        """The queues that the worker takes messages from."""
        return tuple(self.consumer.app.amqp.queues.consume_from) if self.consumer else ()

    def wake(self) -> None:
        """Have the worker's loop look around now. From any thread."""
        if self.hub:
            with contextlib.suppress(OSError):  # it is closed already
                self.hub.call_soon(self._on_wake)

    def send(self, events: Sequence[TaskEvent]) -> None:
        """Enter task events into Celery's books, and send them together. Only in the worker's loop, or after it.

        Celery keeps them while the broker is away. A revoked task stays revoked, however it ended.
        """
        if self.consumer is None or not events:
            return
        dispatcher = self.consumer.event_dispatcher
        heard = dispatcher and dispatcher.enabled and _is_heard(dispatcher)
        for event in events:
            note(event, self.consumer.app, self.consumer)
            if heard and event.fields["uuid"] not in state.revoked:
                dispatcher.send(event.kind, **event.fields)
        if heard:
            dispatcher.flush()


def _is_heard(dispatcher: Any) -> bool:
    """Return whether anybody may listen to task events: the broker keeps none, and making them takes time."""
    with contextlib.suppress(Exception):
        channel = dispatcher.producer.channel
        with channel.conn_or_acquire() as client:
            return bool(client.publish(f"{channel.keyprefix_fanout}{dispatcher.exchange.name}/task.multi", ""))
    return True
