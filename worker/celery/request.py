"""Tasks in Celery's worker state, which ``celery inspect`` shows and ``celery control`` changes."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any

from celery.worker import state
from celery.worker.request import Request
from kombu.message import Message

from worker.celery.task_events import Task, TaskEvent

_ENDINGS = frozenset({"task-succeeded", "task-failed"})


class TaskRequest(Request):
    """A received task in Celery's worker state. The engine runs the task and sends the task's events."""

    def acknowledge(self) -> None:
        """Do nothing, because our queues need no acknowledgement."""

    def send_event(self, type: str, **fields: Any) -> None:  # noqa: A002 - Celery's name
        """Send an event only if it is ``task-revoked``, because the engine sends all other events."""
        if type == "task-revoked" and self.eventer and self.eventer.enabled:
            self.eventer.send(type, uuid=self.id, **fields)

    def cancel(self, *_: Any, **__: Any) -> None:
        """Do nothing when Celery cancels tasks, because the engine hands their turns to other workers."""


def record_events(events: Sequence[TaskEvent], app: Any, consumer: Any) -> None:
    """Update Celery's list of active tasks after these events.

    A task that the engine continued without a message is added to the list, or only counted if it has ended already.
    """
    ended = {event.fields["uuid"] for event in events if event.kind in _ENDINGS}
    for event in events:
        task_id = event.fields["uuid"]
        request = state.requests.get(task_id)
        if event.task and not request:
            if task_id in ended:
                state.total_count[event.task.name] += 1
                state.all_total_count[0] += 1
            else:
                _record_start(event.task, app, consumer)
        elif request and event.kind in _ENDINGS:
            state.task_ready(request, successful=event.kind == "task-succeeded")


def _record_start(task: Task, app: Any, consumer: Any) -> None:
    ids = {"id": task.task_id, "root_id": task.root_id, "parent_id": task.parent_id}
    request = TaskRequest(
        Message(headers={"task": task.name, "kwargsrepr": task.kwargs_text, **ids}),
        app=app,
        hostname=consumer.hostname,
        eventer=consumer.event_dispatcher,
        task=app.tasks[task.name],
        body=((), task.kwargs, {}),
        decoded=True,
    )
    state.task_reserved(request)
    if not request.revoked():
        request.on_accepted(os.getpid(), time.monotonic())  # type: ignore[arg-type] # the stubs say text
