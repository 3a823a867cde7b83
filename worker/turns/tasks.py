"""The Celery tasks: thin shells over the service. Arguments are ids, never prompts: operators read them in Flower."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import structlog
from celery import Celery, Task

from api_client.contract.failpoints import reach
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
    Link,
)
from worker.turns.service import TurnService

#: What each task does, as operators read it in Flower and in `celery inspect registered`.
_DOCS = {
    RUN: "Run the agent for the user's message.",
    RETRY: "Run the agent again, with feedback on the attempt before.",
    VALIDATE: "Judge the answer with the active validators and decide what comes next.",
    FALLBACK: "Repair the best answer without the agent, and judge it again.",
    FAIL: "End the turn honestly: no acceptable answer.",
    RESUME: "Carry out what was decided: publish what was accepted, ask again, or end.",
    PHASE_RUN: "Run the agent for a phase.",
    PHASE_VERIFY: "Verify a phase: its gates, then an independent agent.",
}


#: Sends a task event: its type, the task's id, the words. Never raises, never waits.
Report = Callable[[str, str, str], None]


def register(app: Celery, service_of: Any, report: Report) -> None:
    """Register the tasks. ``service_of()`` is this process's ``TurnService``, made after the worker started."""
    for name in QUEUES:
        app.task(name=name, bind=True, ignore_result=True, queue=QUEUES[name])(_body(name, service_of, report))

    def probe(*, queue: str, nonce: str) -> None:
        """Prove that this worker takes messages."""
        if nonce:  # a worker's own probe is answered by being taken
            service_of().answer_probe(queue, nonce)

    app.task(name=PROBE, ignore_result=True, send_events=False)(probe)


def _body(name: str, service_of: Any, report: Report) -> Any:
    def carry_out(self: Task[Any, Any], *, turn_id: str, attempt: int, session_id: str) -> str:
        link = Link.parse(f"{name}/{attempt}")
        service: TurnService = service_of()
        told = ""

        def tell(state: str, words: str) -> None:
            nonlocal told
            told = words
            if state:
                report(f"task-{state}", str(self.request.id), words)

        with structlog.contextvars.bound_contextvars(turn_id=turn_id, session_id=session_id, attempt=attempt):
            reach("task.received")
            if service.carry_out(link, turn_id, session_id, tell=tell):
                reach("run.committed")
            else:
                # What was to follow in this chain does not follow; what follows instead was announced.
                self.request.chain = None
        return told  # stored nowhere: operators read it in Flower, as the task's result

    carry_out.__name__ = name.replace(".", "_")
    carry_out.__doc__ = _DOCS[name]
    return carry_out
