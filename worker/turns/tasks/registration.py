"""The Celery tasks, as operators know them. Arguments are ids, never prompts: Flower shows them."""

from __future__ import annotations

from collections.abc import Callable

from celery import Celery

from api_client.contract import tasks
from worker.turns.tasks.celery_internals import STRATEGY
from worker.turns.tasks.task_events import Task


def register(app: Celery, take: Callable[[Task], None]) -> None:
    """Register the tasks. ``take`` is handed each task whose message comes, in the worker's own loop."""
    taken = staticmethod(take)
    for name, task in tasks.all_tasks().items():
        app.task(name=name, queue=task.queue, ignore_result=True, shared=False, Strategy=STRATEGY, take=taken)(
            _body(name, task.purpose)
        )

    def probe(*, queue: str, nonce: str) -> None:
        """Prove that this worker takes messages."""

    app.task(name=tasks.PROBE, send_events=False, ignore_result=True, shared=False, Strategy=STRATEGY, take=taken)(
        probe
    )


def _body(name: str, purpose: str) -> Callable[..., None]:
    def carry_out(*, turn_id: str, attempt: int, session_id: str) -> None:
        raise NotImplementedError("the engine of `turns worker` carries this out")

    carry_out.__name__ = name.replace(".", "_")
    carry_out.__doc__ = purpose
    return carry_out
