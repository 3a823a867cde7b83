"""The Celery tasks, as operators know them. Arguments are ids, never prompts: Flower shows them."""

from __future__ import annotations

from collections.abc import Callable

from celery import Celery

from api_client.contract.tasks import (
    FAIL,
    FALLBACK,
    PHASE_RUN,
    PHASE_VERIFY,
    PROBE,
    QUEUES,
    RESUME,
    RETRY,
    RUN,
    VALIDATE,
)
from worker.turns.tasks.celery_internals import STRATEGY
from worker.turns.tasks.task_events import Task

#: What each task does, as operators read it in Flower and in `celery inspect registered`.
_DOCS = {
    RUN: "Run the agent for the user's message.",
    RETRY: "Run the agent again, with feedback on the attempt before.",
    VALIDATE: "Judge the answer with the active validators and decide the next link.",
    FALLBACK: "Repair the best answer without the agent, and judge it again.",
    FAIL: "End the turn honestly: no acceptable answer.",
    RESUME: "Carry out what was decided: publish what was accepted, ask again, or end.",
    PHASE_RUN: "Run the agent for a phase.",
    PHASE_VERIFY: "Verify a phase: its gates, then an independent agent.",
}


def register(app: Celery, take: Callable[[Task], None]) -> None:
    """Register the tasks. ``take`` is handed each task whose message comes, in the worker's own loop."""
    for name, queue in QUEUES.items():
        app.task(name=name, ignore_result=True, shared=False, queue=queue, Strategy=STRATEGY, take=staticmethod(take))(
            _body(name)
        )

    def probe(*, queue: str, nonce: str) -> None:
        """Prove that this worker takes messages."""

    app.task(
        name=PROBE, ignore_result=True, shared=False, send_events=False, Strategy=STRATEGY, take=staticmethod(take)
    )(probe)


def _body(name: str) -> Callable[..., None]:
    def carry_out(*, turn_id: str, attempt: int, session_id: str) -> None:
        raise NotImplementedError("the engine of `turns worker` carries this out")

    carry_out.__name__ = name.replace(".", "_")
    carry_out.__doc__ = _DOCS[name]
    return carry_out
