"""Which turn comes next: from which queue a worker takes its next message.

Turns that have waited before go first: runs that were lost with their worker, retries, and all announcements of a
reaper are in the preferred queue. It gets at most ``PREFERRED_IN_A_ROW`` messages before the others get one, so
that turns that keep failing hold up nobody. Fair shares between owners would have their place here too.
"""

from __future__ import annotations

from collections.abc import Sequence

from api_client.contract import tasks

#: Of four messages at most three are preferred while others wait.
PREFERRED_IN_A_ROW = 3


def _first(queue: str) -> bool:
    return queue == tasks.CHECK_QUEUE or queue.startswith(tasks.OWN_QUEUE)


class NextQueue:
    """Says from which queue to take the next message, and learns from which it was taken. Pure."""

    def __init__(self) -> None:
        self._in_a_row = 0

    def order(self, queues: Sequence[str]) -> list[str]:
        """The queues as they are to be asked: the first that has a message gives it."""
        # A message in its own queue was at the front of another one before; a run to be judged has ended already.
        first = list(filter(_first, queues))
        others = [queue for queue in queues if queue != tasks.PREFERRED_QUEUE and queue not in first]
        if tasks.PREFERRED_QUEUE not in queues:
            return [*first, *others]
        if self._in_a_row < PREFERRED_IN_A_ROW:
            return [*first, tasks.PREFERRED_QUEUE, *others]
        return [*first, *others, tasks.PREFERRED_QUEUE]

    def took(self, queue: str) -> None:
        """A message was taken from this queue."""
        if queue == tasks.PREFERRED_QUEUE:
            self._in_a_row += 1
        elif queue == tasks.RUN_QUEUE:
            self._in_a_row = 0
