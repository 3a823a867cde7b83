"""Registers the Celery tasks and control commands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from celery import Celery, Task
from celery.worker import control

from api_client.contract import tasks
from worker.celery.request import TaskRequest


class EngineTask(Task):  # type: ignore[type-arg]
    """A Celery task for one step of a turn. Its function never runs, because ``TurnPool`` starts the step."""

    Request = f"{TaskRequest.__module__}:{TaskRequest.__name__}"
    send_events = False  # the engine sends them
    ignore_result = True


def register_tasks(app: Celery) -> None:
    """Register all tasks with Celery, and replace the control commands that work differently for turns."""
    for name, task in tasks.all_tasks().items():
        app.task(name=name, base=EngineTask, shared=False)(_body(name, task.purpose))

    def probe(*, queue: str, nonce: str) -> None:
        """Show that this worker takes messages."""

    app.task(name=tasks.PROBE, send_events=False, ignore_result=True, shared=False)(probe)

    cancel: Any = vars(control)["revoke"]

    @control.control_command(name="revoke", variadic="task_id", signature="[id1 [id2 [... [idN]]]]")
    def revoke(state: Any, task_id: Any, terminate: bool = False, **options: Any) -> Any:
        """Cancel the running or waiting turns of these tasks, with or without ``terminate``."""
        return cancel(state, task_id, terminate=True, **options)

    @control.control_command(name="time_limit")
    def time_limit(_state: Any, **_: Any) -> Any:
        """Refuse Celery's command, because Celery's time limits have no effect on turns."""
        return {"error": "a turn ends by its own `deadline_seconds` and its model's limits (docs/settings.md)"}

    @control.control_command(name="rate_limit")
    def rate_limit(_state: Any, **_: Any) -> Any:
        """Refuse Celery's command, because a worker would hoard messages until the rate allows them."""
        return {"error": "turns are limited by slots and by the limits of owners (docs/settings.md)"}


def _body(name: str, purpose: str) -> Callable[..., None]:
    def carry_out(*, turn_id: str, attempt: int, session_id: str) -> None:
        raise NotImplementedError("the engine of `turns run worker` carries this out")

    carry_out.__name__ = name.replace(".", "_")
    carry_out.__doc__ = purpose
    return carry_out
