"""Chooses the queue from which a worker takes its next message: turns that waited before come first.

After ``PREFERRED_IN_A_ROW`` preferred messages the other queues get a turn, so that failing turns block nobody.
"""

from __future__ import annotations

from collections.abc import Sequence

from api_client.contract import tasks

#: Preferred messages in a row while other messages wait.
PREFERRED_IN_A_ROW = 3


class NextQueue:
    """Decides the order in which a worker polls queues: turns in progress first, without starving new turns."""

    def __init__(self) -> None:
        self._in_a_row = 0

    def order_queues(self, queues: Sequence[str]) -> list[str]:
        """Return the given queues in the order in which the worker should poll them."""
        # A message in a worker's own queue already waited elsewhere; a run to validate has already finished.
        first = [queue for queue in queues if queue == tasks.CHECK_QUEUE or queue.startswith(tasks.OWN_QUEUE)]
        others = [queue for queue in queues if queue != tasks.PREFERRED_QUEUE and queue not in first]
        if tasks.PREFERRED_QUEUE not in queues:
            return [*first, *others]
        if self._in_a_row < PREFERRED_IN_A_ROW:
            return [*first, tasks.PREFERRED_QUEUE, *others]
        return [*first, *others, tasks.PREFERRED_QUEUE]

    def note_taken(self, queue: str) -> None:
        """Record that a message was taken from a queue, which affects the next polling order."""
        if queue == tasks.PREFERRED_QUEUE:
            self._in_a_row += 1
        elif queue == tasks.RUN_QUEUE:
            self._in_a_row = 0
