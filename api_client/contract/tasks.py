"""Names of the Celery tasks and queues, and what ``next`` in a turn's record means."""

from __future__ import annotations

from typing import Any, NamedTuple

from api_client.contract.settings import Settings
from api_client.contract.turn import TurnRequest
from api_client.contract.values.sentinels import Sentinels

RUN = "turn.run"
VALIDATE = "turn.validate"
RETRY = "turn.retry"
FALLBACK = "turn.fallback"
FAIL = "turn.fail"
RESUME = "turn.resume"
PHASE_RUN = "phase.run"
PHASE_VERIFY = "phase.verify"
#: No link of any turn: a worker that carries it out proves that it would claim one (``api_client/workers/probe.py``).
PROBE = "worker.probe"

#: Agents run here, and phases are verified (by commands and by agents): long, many at once.
RUN_QUEUE = "helix.run"
#: Agents of turns that have waited before: retries, and runs that were lost with their worker (``next_queue.py``).
PREFERRED_QUEUE = "helix.run.preferred"
#: Answers are judged here: short, and never behind a run.
CHECK_QUEUE = "helix.check"

QUEUES = {
    RUN: RUN_QUEUE,
    RETRY: RUN_QUEUE,
    VALIDATE: CHECK_QUEUE,
    FALLBACK: CHECK_QUEUE,
    FAIL: CHECK_QUEUE,
    RESUME: CHECK_QUEUE,
    PHASE_RUN: RUN_QUEUE,
    PHASE_VERIFY: RUN_QUEUE,
}
#: What judges the result of a link that runs the agent.
JUDGED_BY = {RUN: VALIDATE, RETRY: VALIDATE, PHASE_RUN: PHASE_VERIFY}


class Link(NamedTuple):
    """One link of a turn's chain: which task is next, for which attempt."""

    task: str
    attempt: int

    def __str__(self) -> str:
        return f"{self.task}/{self.attempt}"

    @classmethod
    def parse(cls, text: str) -> Link:
        """Read ``turn.run/1``.

        Raises:
            ValueError: the text names no known task.
        """
        task, _, attempt = text.partition("/")
        if task not in QUEUES or not attempt.isdecimal():
            raise ValueError(f"not a link of a turn's chain: {text[:80]!r}")
        return cls(task, int(attempt))


#: Every queue that workers consume.
ALL_QUEUES = (RUN_QUEUE, PREFERRED_QUEUE, CHECK_QUEUE)


def queue_of(link: Link, *, preferred: bool = False) -> str:
    """The queue a link is announced to. ``preferred``: its turn has waited before; a retry always has."""
    queue = QUEUES[link.task]
    return PREFERRED_QUEUE if queue == RUN_QUEUE and (preferred or link.attempt > 1) else queue


def first_link(request: TurnRequest) -> Link:
    """The link a turn begins with."""
    return Link(RUN if request.phase is None else PHASE_RUN, 1)


def chain_of(link: Link, turn_id: str, session_id: str, *, preferred: bool = False) -> list[dict[str, Any]]:
    """The Celery chain that carries a link out: a run is followed by what judges it.

    Each item is the keyword arguments of one immutable signature. Arguments are ids only, never prompts: operators read
    them in Flower.
    """
    tasks = [link.task, *filter(None, [JUDGED_BY.get(link.task)])]
    return [
        {
            "name": task,
            "kwargs": {"turn_id": turn_id, "attempt": link.attempt, "session_id": session_id},
            "queue": queue_of(Link(task, link.attempt), preferred=preferred),
        }
        for task in tasks
    ]


def celery_settings(settings: Settings) -> dict[str, Any]:
    """Return how both sides configure Celery, for the reasons measured for 5.7 with Redis.

    Messages are acknowledged early and never prefetched: the turn's record, not the message, is what must survive, and
    late acknowledgement makes a worker exit when the broker drops. There is no result backend for the same reason.

    Task events must stay on: without prefetching, nothing but their flushing wakes a worker of the threads pool when a
    slot gets free (``make bench`` fell from 76 to 2.7 turns/s without them).
    """
    sentinels = Sentinels.parse(settings.broker_url)
    return {
        "broker_url": settings.celery_url,
        "task_acks_late": False,
        "worker_prefetch_multiplier": 1,
        "worker_disable_prefetch": True,
        "task_ignore_result": True,
        "result_backend": None,
        "task_store_errors_even_if_ignored": False,
        "task_publish_retry": False,
        "task_serializer": "json",
        "accept_content": ["json"],
        "task_default_queue": RUN_QUEUE,
        "task_queues": None,
        "task_create_missing_queues": True,
        "worker_send_task_events": True,
        "task_send_sent_event": True,
        "broker_connection_retry_on_startup": True,
        "broker_connection_max_retries": None,
        # A broker that became read-only or full answers with an error: wait for it too, and keep the agents running.
        "broker_channel_error_retry": True,
        "broker_transport_options": {
            "priority_steps": [0],  # one list for each queue: nothing is published with another priority
            "visibility_timeout": 3600,
            "unacked_restore_interval": 86_400,  # nothing is ever unacknowledged
            "global_keyprefix": f"{settings.namespace}:celery:",
            "socket_timeout": 30,
            "socket_connect_timeout": 5,
            "socket_keepalive": True,
            "health_check_interval": 25,
            **({"master_name": sentinels.master} if sentinels else {}),
        },
        "worker_hijack_root_logger": False,
        "worker_cancel_long_running_tasks_on_connection_loss": False,
    }
