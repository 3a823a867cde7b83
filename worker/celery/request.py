"""A link of a turn as a request in the books of Celery's worker: what ``celery inspect`` and ``control`` see."""

from __future__ import annotations

import os
import time
from typing import Any

from celery.worker import state
from celery.worker.request import Request
from kombu.message import Message

from worker.celery.task_story import Task, TaskEvent


class LinkRequest(Request):
    """A task that the engine carries out, and whose events the engine sends."""

    def acknowledge(self) -> None:
        """Do nothing: messages are taken without acknowledgement."""

    def send_event(self, type: str, **fields: Any) -> None:  # noqa: A002 - Celery's name
        """Send the one event that the engine does not know of."""
        if type == "task-revoked" and self.eventer and self.eventer.enabled:
            self.eventer.send(type, uuid=self.id, **fields)

    def cancel(self, *_: Any, **__: Any) -> None:
        """Do nothing in a cold shutdown: the engine hands the turn over, and nobody called it off."""


def note(event: TaskEvent, app: Any, consumer: Any) -> None:
    """Enter into the books what the engine did with a task; a link in place is entered as a task without a message."""
    request = state.requests.get(event.fields["uuid"])
    if event.task and not request:
        _begin(event.task, app, consumer)
    elif request and event.kind in {"task-succeeded", "task-failed"}:
        state.task_ready(request, successful=event.kind == "task-succeeded")


def _begin(task: Task, app: Any, consumer: Any) -> None:
    ids = {"id": task.task_id, "root_id": task.root_id, "parent_id": task.parent_id}
    request = LinkRequest(
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
