"""Slots: how many turns one process works on at once, counted for each queue. For any thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence

from api_client.contract.tasks import CHECK_QUEUE, RUN_QUEUE
from worker.turns.next_queue import NextQueue

#: For so long no slot for agents was free when answers to judge are asked for alone, in seconds.
_FULL_SECONDS = 0.25


class Slots:
    """The slots of a process. ``on_free`` is called, in whatever thread, when a queue that had none has one again."""

    def __init__(self, limits: Mapping[str, int], on_free: Callable[[], object] = lambda: None) -> None:
        self._limits = dict(limits)
        self._busy = dict.fromkeys(limits, 0)
        self._full_since = 0.0
        self._on_free = on_free
        #: Whether messages are taken at all.
        self.is_open: Callable[[], bool] = lambda: True
        self._next = NextQueue()
        #: To be called with the queue from which a message was taken.
        self.took = self._next.took
        self._lock = threading.Lock()

    def __json__(self) -> str:
        """Return what ``celery inspect stats`` shows among the transport's options."""
        return "the engine's"

    def total(self, queue: str) -> int:
        """Return how many slots a queue has."""
        return self._limits.get(queue, 0)

    def free(self, queue: str) -> int:
        """Return how many of a queue's slots are free. The turns of all queues for runs take the same slots."""
        queue = RUN_QUEUE if queue.startswith(RUN_QUEUE) else queue
        return max(0, self._limits.get(queue, 0) - self._busy.get(queue, 0))

    @property
    def busy(self) -> int:
        """Return how many slots are taken, of all queues."""
        return sum(self._busy.values())

    def order(self, queues: Sequence[str]) -> list[str]:
        """Which queues to take the next message from, the first of them first: this says which turn comes next."""
        return self._next.order(list(filter(self.free, queues)))

    def asked(self, queues: Sequence[str]) -> list[str]:
        """As ``order``, but answers alone only once no slot for agents was free for a moment.

        A pop of them has to be ended when one is: that costs more than a short turn takes.
        """
        order = self.order(queues) if self.is_open() else []
        if len(queues) <= 1 or not order:
            return order
        if order != [CHECK_QUEUE]:
            self._full_since = 0.0
            return order
        now = time.monotonic()
        self._full_since = self._full_since or now
        return order if now - self._full_since >= _FULL_SECONDS else []

    def resize(self, queue: str, total: int) -> None:
        """Have so many slots for a queue from now on; what was taken stays taken."""
        with self._lock:
            self._limits[queue] = total
        self._on_free()

    def enter(self, queue: str) -> Seat:
        """A slot for a message that was taken already: beyond the limit, if it must be."""
        with self._lock:
            self._busy[queue] = self._busy.get(queue, 0) + 1
        return Seat(self, queue)

    def take(self, queue: str) -> bool:
        """Take a slot; False when none is free."""
        with self._lock:
            if self._busy.get(queue, 0) >= self._limits.get(queue, 0):
                return False
            self._busy[queue] = self._busy.get(queue, 0) + 1
        return True

    def give(self, queue: str) -> None:
        """Give a slot back."""
        with self._lock:
            was_full = self._busy[queue] >= self._limits.get(queue, 0)
            self._busy[queue] -= 1
        if was_full:
            self._on_free()


class Seat:
    """The slots that one turn has in this process while its links are carried on in place.

    A turn that was taken to run its agent keeps that slot while its answer is judged, so that it can ask again at once,
    and needs no second one: how many are judged in children at once is the judges' own limit.
    """

    def __init__(self, slots: Slots, *queues: str) -> None:
        self._slots = slots
        self._held = set(queues)

    def may_go_on(self, queue: str) -> bool:
        """Return whether this process has a slot for a link of ``queue``; then it is taken."""
        if queue in self._held or RUN_QUEUE in self._held:
            return True
        if self._slots.take(queue):
            self._held.add(queue)
            return True
        return False

    def settle(self, queue: str) -> None:
        """The turn goes on with a link of ``queue``: give back what that needs no more."""
        for other in self._held - {queue, RUN_QUEUE}:
            self._held.discard(other)
            self._slots.give(other)

    def leave(self) -> None:
        """The turn is done with here."""
        while self._held:
            self._slots.give(self._held.pop())
