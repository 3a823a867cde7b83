"""Names of the Celery tasks and queues, and what ``next`` in a turn's record means (DESIGN section 3)."""

from __future__ import annotations

from typing import NamedTuple

RUN = "turn.run"
VALIDATE = "turn.validate"
RETRY = "turn.retry"
FALLBACK = "turn.fallback"
FAIL = "turn.fail"

#: Agents run here: long, many at once.
RUN_QUEUE = "helix.run"
#: Answers are judged here: short, and never behind a run.
CHECK_QUEUE = "helix.check"

QUEUES = {RUN: RUN_QUEUE, RETRY: RUN_QUEUE, VALIDATE: CHECK_QUEUE, FALLBACK: CHECK_QUEUE, FAIL: CHECK_QUEUE}


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
