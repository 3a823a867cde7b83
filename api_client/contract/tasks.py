"""Names of the Celery tasks and queues, and the tasks that a turn's record names in ``next``."""

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
#: A task outside of turns: a worker that runs this task proves that it reads messages.
PROBE = "worker.probe"

#: Queue of agent runs and other long work, many at once: commands, and agents that verify.
RUN_QUEUE = "helix.run"
#: Queue of turns that have waited before: retries, and runs that were lost with their worker (``next_queue.py``).
PREFERRED_QUEUE = "helix.run.preferred"
#: Prefix of the queue of a single worker process: runs of sessions whose agent the process keeps.
OWN_QUEUE = "helix.run.own."
#: Queue of validation: short tasks that never wait behind a run.
CHECK_QUEUE = "helix.check"


@dataclass(frozen=True, slots=True)
class TaskDeclaration:
    """Declares a Celery task that is one step of a turn.

    Attributes:
        purpose: what it does, for operators.
        state: the turn's state meanwhile, as Flower shows it.
        follows: what Flower reports of the task before this one.
        checked_by: task that checks the result of this one's agent; empty if it runs no agent.
        begins: turns begin with this task.
    """

    queue: str
    purpose: str
    state: str = "running"
    follows: str = ""
    checked_by: str = ""
    begins: bool = False


_AGAIN = "Run the agent again, with feedback on the attempt before."
_VALIDATE = "Validate the answer with the active validators and decide the next task."
_FALLBACK = "Repair the best answer without the agent, and validate it again."
_RESUME = "Carry out what was decided: publish what was accepted, ask again, or end."
TASKS = {
    RUN: TaskDeclaration(RUN_QUEUE, "Run the agent for the user's message.", checked_by=VALIDATE, begins=True),
    RETRY: TaskDeclaration(RUN_QUEUE, _AGAIN, follows="asked again", checked_by=VALIDATE),
    VALIDATE: TaskDeclaration(CHECK_QUEUE, _VALIDATE, "validating"),
    FALLBACK: TaskDeclaration(CHECK_QUEUE, _FALLBACK, "repairing", "to be repaired"),
    FAIL: TaskDeclaration(CHECK_QUEUE, "End the turn honestly: no acceptable answer.", "ending", "given up"),
    RESUME: TaskDeclaration(CHECK_QUEUE, _RESUME, "resuming"),
}


@cache
def all_tasks() -> Mapping[str, TaskDeclaration]:
    """Return the declarations of all tasks by name, including tasks of installed plug-ins."""
    added = {name: task for kind in installed_kinds().values() for name, task in kind.tasks.items()}
    return added | TASKS


def find_queue(task: str) -> str:
    """Return the queue for messages of a task. Raises ``KeyError`` if the task is unknown."""
    return all_tasks()[task].queue


def runs_agent(task: str) -> bool:
    """Return True if a task runs an agent, so that the next task must check the result."""
    return bool(all_tasks()[task].checked_by)


class ChainTask(NamedTuple):
    """A task of a turn together with the number of the attempt, such as ``turn.run/1``."""

    task: str
    attempt: int

    def __str__(self) -> str:
        return f"{self.task}/{self.attempt}"

    @classmethod
    def parse(cls, text: str) -> ChainTask:
        """Parse a text such as ``turn.run/1``. Raises ``UnknownTask``, or ``ValueError`` for a malformed text."""
        task, _, attempt = text.partition("/")
        if not attempt.isdecimal():
            raise ValueError(f"not a task of a turn: {text[:80]!r}")
        if task not in all_tasks():
            raise UnknownTask(cls(task, int(attempt)))
        return cls(task, int(attempt))

    @property
    def begins(self) -> bool:
        return self.attempt == 1 and all_tasks()[self.task].begins


class UnknownTask(ValueError):
    """Raised for a task that no installed package declares. Only a worker with the package can carry it out."""

    def __init__(self, chain_task: ChainTask) -> None:
        super().__init__(f"{chain_task.task[:80]!r} is not a task that a package here declares")
        self.chain_task = chain_task


#: All queues that workers share; each worker process also has its own.
ALL_QUEUES = (RUN_QUEUE, PREFERRED_QUEUE, CHECK_QUEUE)


def own_queue(worker: str) -> str:
    """Return the queue that only this worker process reads."""
    return OWN_QUEUE + worker


def choose_queue(chain_task: ChainTask, *, preferred: bool = False, worker: str = "") -> str:
    """Choose the queue for a task.

    ``preferred``: the turn has waited before, as for each retry. ``worker``: the process that should run the task.
    """
    queue = find_queue(chain_task.task)
    if worker and queue == RUN_QUEUE:
        return own_queue(worker)
    return PREFERRED_QUEUE if queue == RUN_QUEUE and (preferred or chain_task.attempt > 1) else queue


def build_chain(
    chain_task: ChainTask, turn_id: str, session_id: str, *, preferred: bool = False, worker: str = ""
) -> list[dict[str, Any]]:
    """Return a turn's Celery tasks to send: the task itself, followed by a checking task after an agent run.

    Each item has the arguments of one immutable signature. Task arguments are ids, never prompts, because Flower shows
    them.
    """
    tasks = [chain_task.task, *filter(None, [all_tasks()[chain_task.task].checked_by])]
    return [
        {
            "name": task,
            "kwargs": {"turn_id": turn_id, "attempt": chain_task.attempt, "session_id": session_id},
            "queue": choose_queue(ChainTask(task, chain_task.attempt), preferred=preferred, worker=worker),
        }
        for task in tasks
    ]
