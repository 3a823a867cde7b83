"""Names of the Celery tasks and queues, and what ``next`` in a turn's record means."""

from __future__ import annotations

from typing import Any, NamedTuple

RUN = "turn.run"
VALIDATE = "turn.validate"
RETRY = "turn.retry"
FALLBACK = "turn.fallback"
FAIL = "turn.fail"
RESUME = "turn.resume"
PHASE_RUN = "phase.run"
PHASE_VERIFY = "phase.verify"
#: No link of any turn: a worker that carries it out proves that it would claim one (``api_client/workers/fleet.py``).
PROBE = "worker.probe"

#: Agents run here, and phases are verified (by commands and by agents): long, many at once.
RUN_QUEUE = "helix.run"
#: Agents of turns that have waited before: retries, and runs that were lost with their worker (``next_queue.py``).
PREFERRED_QUEUE = "helix.run.preferred"
#: Begins the name of a queue that one worker process alone takes messages from: runs of sessions whose agent it keeps.
OWN_QUEUE = "helix.run.own."
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
        """Read ``turn.run/1``. Raises ``ValueError``: the text names no known task."""
        task, _, attempt = text.partition("/")
        if task not in QUEUES or not attempt.isdecimal():
            raise ValueError(f"not a link of a turn's chain: {text[:80]!r}")
        return cls(task, int(attempt))


#: The links that a turn begins with.
FIRST_LINKS = frozenset({Link(RUN, 1), Link(PHASE_RUN, 1)})
#: Every queue that workers consume, besides each its own.
ALL_QUEUES = (RUN_QUEUE, PREFERRED_QUEUE, CHECK_QUEUE)


def own_queue(worker: str) -> str:
    """The queue that this worker process alone takes messages from."""
    return OWN_QUEUE + worker


def queue_of(link: Link, *, preferred: bool = False, keeper: str = "") -> str:
    """The queue a link is announced to.

    ``preferred``: its turn has waited before; a retry always has. ``keeper``: the worker process that is to run it.
    """
    queue = QUEUES[link.task]
    if keeper and queue == RUN_QUEUE:
        return own_queue(keeper)
    return PREFERRED_QUEUE if queue == RUN_QUEUE and (preferred or link.attempt > 1) else queue


def chain_of(
    link: Link, turn_id: str, session_id: str, *, preferred: bool = False, keeper: str = ""
) -> list[dict[str, Any]]:
    """The Celery chain that carries a link out: a run is followed by what judges it.

    Each item is the keyword arguments of one immutable signature. Arguments are ids only, never prompts: operators read
    them in Flower.
    """
    tasks = [link.task, *filter(None, [JUDGED_BY.get(link.task)])]
    return [
        {
            "name": task,
            "kwargs": {"turn_id": turn_id, "attempt": link.attempt, "session_id": session_id},
            "queue": queue_of(Link(task, link.attempt), preferred=preferred, keeper=keeper),
        }
        for task in tasks
    ]
