"""Task events: the reports that Flower expects of Celery's workers, made by the engine that carries the links out.

A link that was announced is the task of its message. A link that is carried on in place has no message, and is a
task all the same: with an id, with the task before it as its parent, and with the events of any other. Each event
carries the time at which it happened; they are sent together, every ``GATHER_SECONDS``.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any, NamedTuple

from kombu.utils.uuid import uuid

from api_client.contract.frozen import frozen
from api_client.contract.tasks import Link

#: Events that happen within this many seconds are sent in one message.
GATHER_SECONDS = 0.25
#: This many are kept while the broker is away; the oldest go first.
_MOST = 20_000


@frozen(slots=True, kw_only=True)
class Task:
    """A Celery task as its message names it.

    Attributes:
        name, task_id, kwargs: the work to do. args_text, kwargs_text: the arguments as operators read them.
        root_id, parent_id: the first task of its chain, and the one before it; empty where there are none.
        chain: the signatures that follow in its message's chain, the next one last.
    """

    name: str
    task_id: str
    kwargs: Mapping[str, Any]
    args_text: str = "()"
    kwargs_text: str = ""
    root_id: str = ""
    parent_id: str = ""
    chain: Sequence[Mapping[str, Any]] = field(default=())


def task_of(headers: Mapping[str, Any], payload: Any) -> Task:
    """Return the task that a message names.

    Raises:
        AttributeError, KeyError, TypeError, ValueError: it is not the message of a task.
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
    """An event of a task. ``task`` is given where the event begins one."""

    kind: str
    fields: dict[str, Any]
    task: Task | None = None


class TaskEvents:
    """Events that were not sent yet. ``on_first`` is called when there are some again; ``drain`` hands them over."""

    def __init__(self, on_first: Callable[[], object]) -> None:
        self._on_first = on_first
        self._waiting: deque[TaskEvent] = deque(maxlen=_MOST)
        self._since = 0.0
        self._lock = threading.Lock()

    def send(self, kind: str, task_id: str, task: Task | None = None, **fields: Any) -> None:
        """Note that something happened to a task now."""
        fields["uuid"], fields["timestamp"] = task_id, time.time()
        with self._lock:
            first = not self._waiting
            if first:
                self._since = time.monotonic()
            self._waiting.append(TaskEvent(kind, fields, task))
        if first:
            self._on_first()

    def failed(self, task_id: str, words: str) -> None:
        """Note that a task failed now; Flower shows the words as its result and as its exception."""
        self.send("task-failed", task_id, exception=words, traceback="", result=words)

    def drain(self, *, all_of_them: bool = False) -> list[TaskEvent]:
        """Return what was noted, in order; nothing yet while more may come within ``GATHER_SECONDS``."""
        with self._lock:
            if not all_of_them and time.monotonic() - self._since < GATHER_SECONDS:
                return []
            events = list(self._waiting)
            self._waiting.clear()
        return events


class TaskStory:
    """One task's events, and those of the tasks that follow it in place."""

    def __init__(self, events: TaskEvents, task: Task) -> None:
        self._events = events
        #: The task that is carried out.
        self.task = task
        self._next_id = ""
        self._began = time.monotonic()

    @property
    def task_id(self) -> str:
        """The id of the task that is carried out."""
        return self.task.task_id

    def begin(self) -> None:
        """The task was received."""
        task = self.task
        self._events.send(
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

    def start(self, words: str) -> None:
        """The task has begun; the words say at what."""
        self._events.send("task-started", self.task.task_id, result=words)

    def end(self, words: str, *, failed: bool = False) -> None:
        """The task has ended."""
        if failed:
            self._events.failed(self.task.task_id, words)
            return
        runtime = time.monotonic() - self._began
        self._events.send("task-succeeded", self.task.task_id, result=repr(words), runtime=runtime)

    def fail(self, error: Exception) -> None:
        """The task broke off."""
        self._events.failed(self.task.task_id, repr(error))

    def following(self, link: Link | None) -> str:
        """The id of the task of the next link, should it be carried out in place: always the same one."""
        named = self.task.chain[-1] if self.task.chain else {}
        if link and named.get("task") == link.task and (own := named.get("options", {}).get("task_id")):
            return str(own)
        self._next_id = self._next_id or uuid()
        return self._next_id

    def follow(self, link: Link) -> None:
        """Go on as the task of the next link, which is carried out in place."""
        before = self.task
        kwargs = {**before.kwargs, "attempt": link.attempt}
        self.task = Task(
            name=link.task,
            task_id=self.following(link),
            kwargs=kwargs,
            kwargs_text=repr(kwargs),
            root_id=before.root_id or before.task_id,
            parent_id=before.task_id,
        )
        self._next_id = ""
        self.begin()
