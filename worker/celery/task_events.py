"""Task events as Flower expects them, made by the engine, which continues tasks without a message."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any, NamedTuple

from kombu.utils.uuid import uuid

from api_client.contract.frozen import checked_frozen
from api_client.contract.tasks import ChainTask

#: Events of this many seconds are sent in one message.
GATHER_SECONDS = 0.25
#: The most events to keep while the broker is away; the oldest are dropped first.
_MAX_EVENTS = 20_000


@checked_frozen(slots=True, kw_only=True)
class Task:
    """The Celery task that a message describes.

    ``root_id`` and ``parent_id`` are empty without a chain; the next signature of ``chain`` is last.
    """

    name: str
    task_id: str
    kwargs: Mapping[str, Any]
    args_text: str = "()"
    kwargs_text: str = ""
    root_id: str = ""
    parent_id: str = ""
    chain: Sequence[Mapping[str, Any]] = field(default=())


def parse_task(headers: Mapping[str, Any], payload: Any) -> Task:
    """Build the task that a message's headers and decoded body describe.

    Raises ``AttributeError``, ``KeyError``, ``TypeError`` or ``ValueError`` for another message.
    """
    _, kwargs, embed = payload
    return Task(
        name=headers["task"],
        task_id=headers["id"],
        kwargs=dict(kwargs),
        args_text=headers.get("argsrepr") or "()",
        kwargs_text=headers.get("kwargsrepr") or repr(kwargs),
        root_id=headers.get("root_id") or headers["id"],
        parent_id=headers.get("parent_id") or "",
        chain=embed.get("chain") or (),
    )


class TaskEvent(NamedTuple):
    """A Celery event about a task. ``task`` is set only in the first event of a task."""

    kind: str
    fields: dict[str, Any]
    task: Task | None = None


class TaskEventBuffer:
    """Collects task events, so that many are sent in one message. Thread-safe.

    Calls ``on_first`` for the first event after ``drain``.
    """

    def __init__(self, on_first: Callable[[], object]) -> None:
        self._on_first = on_first
        self._waiting: deque[TaskEvent] = deque(maxlen=_MAX_EVENTS)
        self._since = 0.0
        self._lock = threading.Lock()

    def add(self, kind: str, task_id: str, task: Task | None = None, **fields: Any) -> None:
        fields["uuid"], fields["timestamp"] = task_id, time.time()
        with self._lock:
            first = not self._waiting
            if first:
                self._since = time.monotonic()
            self._waiting.append(TaskEvent(kind, fields, task))
        if first:
            self._on_first()

    def add_failure(self, task_id: str, words: str) -> None:
        """Add a ``task-failed`` event. Flower shows ``words`` as the task's result and exception."""
        self.add("task-failed", task_id, exception=words, traceback="", result=words)

    def drain(self, *, all_of_them: bool = False) -> list[TaskEvent]:
        """Remove and return all events in order.

        Return an empty list while the oldest event is younger than ``GATHER_SECONDS``, unless ``all_of_them``.
        """
        with self._lock:
            if not all_of_them and time.monotonic() - self._since < GATHER_SECONDS:
                return []
            events = list(self._waiting)
            self._waiting.clear()
        return events


class TaskEventReport:
    """Reports the progress of a task, and of the next tasks in this process, as Celery events."""

    def __init__(self, events: TaskEventBuffer, task: Task) -> None:
        self._events = events
        self.task = task
        self._next_id = ""
        self._began = time.monotonic()

    @property
    def task_id(self) -> str:
        return self.task.task_id

    def begin(self) -> None:
        task = self.task
        self._events.add(
            "task-received",
            task.task_id,
            task,
            name=task.name,
            args=task.args_text,
            kwargs=task.kwargs_text,
            root_id=task.root_id or task.task_id,
            parent_id=task.parent_id or None,
            retries=0,
            eta=None,
            expires=None,
        )
        self._began = time.monotonic()

    def start_task(self, words: str) -> None:
        """Report that the task has started. Flower shows ``words`` as the task's result."""
        self._events.add("task-started", self.task.task_id, result=words)

    def end_task(self, words: str, *, failed: bool = False) -> None:
        """Report that the task has succeeded or failed, with ``words`` as its result."""
        if failed:
            self._events.add_failure(self.task.task_id, words)
            return
        runtime = time.monotonic() - self._began
        self._events.add("task-succeeded", self.task.task_id, result=repr(words), runtime=runtime)

    def fail(self, error: Exception) -> None:
        self._events.add_failure(self.task.task_id, repr(error))

    def next_task_id(self, chain_task: ChainTask | None) -> str:
        """Return the Celery id of the next task if this process continues with it."""
        named = self.task.chain[-1] if self.task.chain else {}
        if chain_task and named.get("task") == chain_task.task and (own := named.get("options", {}).get("task_id")):
            return str(own)
        self._next_id = self._next_id or uuid()
        return self._next_id

    def start_next(self, chain_task: ChainTask) -> None:
        """Report that this process continues with the turn's next task ``chain_task``."""
        before = self.task
        kwargs = {**before.kwargs, "attempt": chain_task.attempt}
        self.task = Task(
            name=chain_task.task,
            task_id=self.next_task_id(chain_task),
            kwargs=kwargs,
            kwargs_text=repr(kwargs),
            root_id=before.root_id or before.task_id,
            parent_id=before.task_id,
        )
        self._next_id = ""
        self.begin()
