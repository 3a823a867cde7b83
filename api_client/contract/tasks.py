"""Names of the Celery tasks and queues, and what ``next`` in a turn's record means."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

from api_client.contract.installed_work import installed_kinds

RUN = "turn.run"
VALIDATE = "turn.validate"
RETRY = "turn.retry"
FALLBACK = "turn.fallback"
FAIL = "turn.fail"
RESUME = "turn.resume"
#: No link of any turn: a worker that carries it out proves that it would claim one (``api_client/workers/fleet.py``).
PROBE = "worker.probe"

#: Agents run here, and whatever else takes long (commands and agents that judge): many at once.
RUN_QUEUE = "helix.run"
#: Agents of turns that have waited before: retries, and runs that were lost with their worker (``next_queue.py``).
PREFERRED_QUEUE = "helix.run.preferred"
#: Begins the name of a queue that one worker process alone takes messages from: runs of sessions whose agent it keeps.
OWN_QUEUE = "helix.run.own."
#: Answers are judged here: short, and never behind a run.
CHECK_QUEUE = "helix.check"


@dataclass(frozen=True, slots=True)
class TaskDeclaration:
    """A Celery task of a turn.

    Attributes:
        queue: where its messages wait. purpose: what it does, for operators.
        state: what its turn does meanwhile, as Flower shows it. follows: what Flower reports of the task before.
        judged_by: the task that judges what this one's agent did; empty where it runs no agent.
        begins: turns begin with it.
    """

    queue: str
    purpose: str
    state: str = "running"
    follows: str = ""
    judged_by: str = ""
    begins: bool = False


_AGAIN = "Run the agent again, with feedback on the attempt before."
_VALIDATE = "Judge the answer with the active validators and decide the next link."
_FALLBACK = "Repair the best answer without the agent, and judge it again."
_RESUME = "Carry out what was decided: publish what was accepted, ask again, or end."
#: The kernel's own tasks.
TASKS = {
    RUN: TaskDeclaration(RUN_QUEUE, "Run the agent for the user's message.", judged_by=VALIDATE, begins=True),
    RETRY: TaskDeclaration(RUN_QUEUE, _AGAIN, follows="asked again", judged_by=VALIDATE),
    VALIDATE: TaskDeclaration(CHECK_QUEUE, _VALIDATE, "validating"),
    FALLBACK: TaskDeclaration(CHECK_QUEUE, _FALLBACK, "repairing", "to be repaired"),
    FAIL: TaskDeclaration(CHECK_QUEUE, "End the turn honestly: no acceptable answer.", "ending", "given up"),
    RESUME: TaskDeclaration(CHECK_QUEUE, _RESUME, "resuming"),
}


@cache
def all_tasks() -> Mapping[str, TaskDeclaration]:
    """Return the tasks of turns by name: the kernel's, and those of the installed kinds of work."""
    added = {name: task for kind in installed_kinds().values() for name, task in kind.tasks.items()}
    return added | TASKS


def find_queue(task: str) -> str:
    """Return the queue of a task. Raises ``KeyError``: no kind of work that is installed has it."""
    return all_tasks()[task].queue


def runs_agent(task: str) -> bool:
    """Return whether a task runs the agent, so that another one judges its result."""
    return bool(all_tasks()[task].judged_by)


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
        if task not in all_tasks() or not attempt.isdecimal():
            raise ValueError(f"not a link of a turn's chain: {text[:80]!r}")
        return cls(task, int(attempt))

    @property
    def begins(self) -> bool:
        """True for a link that turns begin with."""
        return self.attempt == 1 and all_tasks()[self.task].begins


#: Every queue that workers consume, besides each its own.
ALL_QUEUES = (RUN_QUEUE, PREFERRED_QUEUE, CHECK_QUEUE)


def own_queue(worker: str) -> str:
    """The queue that this worker process alone takes messages from."""
    return OWN_QUEUE + worker


def queue_of(link: Link, *, preferred: bool = False, worker: str = "") -> str:
    """The queue a link is announced to.

    ``preferred``: its turn has waited before; a retry always has. ``worker``: the process that is to run it.
    """
    queue = find_queue(link.task)
    if worker and queue == RUN_QUEUE:
        return own_queue(worker)
    return PREFERRED_QUEUE if queue == RUN_QUEUE and (preferred or link.attempt > 1) else queue


def chain_of(
    link: Link, turn_id: str, session_id: str, *, preferred: bool = False, worker: str = ""
) -> list[dict[str, Any]]:
    """The Celery chain that carries a link out: a run is followed by what judges it.

    Each item is the keyword arguments of one immutable signature. Arguments are ids only, never prompts: operators read
    them in Flower.
    """
    tasks = [link.task, *filter(None, [all_tasks()[link.task].judged_by])]
    return [
        {
            "name": task,
            "kwargs": {"turn_id": turn_id, "attempt": link.attempt, "session_id": session_id},
            "queue": queue_of(Link(task, link.attempt), preferred=preferred, worker=worker),
        }
        for task in tasks
    ]
