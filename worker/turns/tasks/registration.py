"""The Celery tasks, as operators know them. Arguments are ids, never prompts: Flower shows them."""

from __future__ import annotations

from collections.abc import Callable

from celery import Celery

from api_client.contract import tasks
from worker.turns.tasks.celery_internals import STRATEGY
from worker.turns.tasks.task_events import Task

#: What each task does, as operators read it in Flower and in `celery inspect registered`.
_DOCS = {
    tasks.RUN: "Run the agent for the user's message.",
    tasks.RETRY: "Run the agent again, with feedback on the attempt before.",
    tasks.VALIDATE: "Judge the answer with the active validators and decide the next link.",
    tasks.FALLBACK: "Repair the best answer without the agent, and judge it again.",
    tasks.FAIL: "End the turn honestly: no acceptable answer.",
    tasks.RESUME: "Carry out what was decided: publish what was accepted, ask again, or end.",
    tasks.PHASE_RUN: "Run the agent for a phase.",
    tasks.PHASE_VERIFY: "Verify a phase: its gates, then an independent agent.",
}


def register(app: Celery, take: Callable[[Task], None]) -> None:
    """Register the tasks. ``take`` is handed each task whose message comes, in the worker's own loop."""
    taken = staticmethod(take)
    for name, queue in tasks.QUEUES.items():
        app.task(name=name, queue=queue, ignore_result=True, shared=False, Strategy=STRATEGY, take=taken)(_body(name))

    def probe(*, queue: str, nonce: str) -> None:
        """Prove that this worker takes messages."""

    app.task(name=tasks.PROBE, send_events=False, ignore_result=True, shared=False, Strategy=STRATEGY, take=taken)(
        probe
    )


def _body(name: str) -> Callable[..., None]:
    def carry_out(*, turn_id: str, attempt: int, session_id: str) -> None:
        raise NotImplementedError("the engine of `turns worker` carries this out")

    carry_out.__name__ = name.replace(".", "_")
    carry_out.__doc__ = _DOCS[name]
    return carry_out
