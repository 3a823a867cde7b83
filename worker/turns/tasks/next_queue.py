"""Which turn comes next: from which queue a worker takes its next message.

Turns that have waited before go first: runs that were lost with their worker, retries, and all announcements of a
reaper are in the preferred queue. It gets at most ``PREFERRED_IN_A_ROW`` messages before the others get one, so that
turns that keep failing hold up nobody. Fair shares between owners would have their place here too.
"""

from __future__ import annotations

from collections.abc import Sequence

from api_client.contract.tasks import PREFERRED_QUEUE, RUN_QUEUE

#: Of four messages at most three are preferred while others wait.
PREFERRED_IN_A_ROW = 3


class NextQueue:
    """Says from which queue to take the next message, and learns from which it was taken. Pure."""

    def __init__(self) -> None:
        self._in_a_row = 0

    def order(self, queues: Sequence[str]) -> list[str]:
        """The queues as they are to be asked: the first that has a message gives it."""
        others = [queue for queue in queues if queue != PREFERRED_QUEUE]
        if PREFERRED_QUEUE not in queues:
            return others
        if self._in_a_row < PREFERRED_IN_A_ROW:
            return [PREFERRED_QUEUE, *others]
        return [*others, PREFERRED_QUEUE]

    def most(self, order: Sequence[str]) -> int:
        """Return how many messages may be taken at once of queues in this order: then another one may be the first."""
        if PREFERRED_QUEUE not in order:
            return PREFERRED_IN_A_ROW
        return PREFERRED_IN_A_ROW - self._in_a_row if order[0] == PREFERRED_QUEUE else 1

    def took(self, queue: str) -> None:
        """A message was taken from this queue."""
        if queue == PREFERRED_QUEUE:
            self._in_a_row += 1
        elif queue == RUN_QUEUE:
            self._in_a_row = 0
