"""Slots: limits on the turns that one process works on at once, by queue. Thread-safe."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence

from api_client.contract.tasks import CHECK_QUEUE, RUN_QUEUE
from worker.turns.next_queue import NextQueue

#: Seconds without a free agent slot before the validation queue is polled alone.
_FULL_SECONDS = 0.25


class Slots:
    """Limits how many turns a process works on at the same time, per queue.

    ``on_free`` is called from any thread when a full queue has a free slot again.
    """

    def __init__(self, limits: Mapping[str, int], on_free: Callable[[], object] = lambda: None) -> None:
        self._limits = dict(limits)
        self._busy = dict.fromkeys(limits, 0)
        self._full_since = 0.0
        self._on_free = on_free
        self.is_open: Callable[[], bool] = lambda: True
        self._next = NextQueue()
        self.took = self._next.note_taken
        self._lock = threading.Lock()

    def __json__(self) -> str:
        return "the engine's"

    def count_slots(self, queue: str) -> int:
        """Return the number of slots of a queue, used and free."""
        return self._limits.get(queue, 0)

    def count_free(self, queue: str) -> int:
        """Return the number of free slots of a queue. All queues for agent runs share the same slots."""
        queue = RUN_QUEUE if queue.startswith(RUN_QUEUE) else queue
        return max(0, self._limits.get(queue, 0) - self._busy.get(queue, 0))

    @property
    def busy(self) -> int:
        """Return the number of slots in use, over all queues."""
        return sum(self._busy.values())

    def order_queues(self, queues: Sequence[str]) -> list[str]:
        """Return the queues that have free slots, in the order in which to poll them."""
        return self._next.order_queues(list(filter(self.count_free, queues)))

    def queues_to_poll(self, queues: Sequence[str]) -> list[str]:
        """Return the queues to poll now. The validation queue alone is returned only after a short delay."""
        order = self.order_queues(queues) if self.is_open() else []
        if len(queues) <= 1 or not order:
            return order
        if order != [CHECK_QUEUE]:
            self._full_since = 0.0
            return order
        now = time.monotonic()
        self._full_since = self._full_since or now
        return order if now - self._full_since >= _FULL_SECONDS else []

    def set_limit(self, queue: str, total: int) -> None:
        """Set the number of slots of a queue. Slots in use stay in use."""
        with self._lock:
            self._limits[queue] = total
        self._on_free()

    def force_slot(self, queue: str) -> SlotHold:
        """Take a slot, above the limit if necessary, because the message has already been popped."""
        with self._lock:
            self._busy[queue] = self._busy.get(queue, 0) + 1
        return SlotHold(self, queue)

    def try_take(self, queue: str) -> bool:
        """Take a free slot of a queue. Return False if no slot is free."""
        with self._lock:
            if self._busy.get(queue, 0) >= self._limits.get(queue, 0):
                return False
            self._busy[queue] = self._busy.get(queue, 0) + 1
        return True

    def give_back(self, queue: str) -> None:
        """Return a slot to its queue. Call ``on_free`` if the queue was full."""
        with self._lock:
            was_full = self._busy[queue] >= self._limits.get(queue, 0)
            self._busy[queue] -= 1
        if was_full:
            self._on_free()


class SlotHold:
    """The slots that a turn holds while a process works on several of the turn's tasks in a row.

    A turn keeps its agent slot during validation, so that its agent can run again at once.
    """

    def __init__(self, slots: Slots, *queues: str) -> None:
        self._slots = slots
        self._held = set(queues)

    def acquire_slot(self, queue: str) -> bool:
        """Take a slot for a task of ``queue`` if none is held yet. Return False if no slot is free."""
        if queue in self._held or RUN_QUEUE in self._held:
            return True
        if self._slots.try_take(queue):
            self._held.add(queue)
            return True
        return False

    def keep_needed(self, queue: str) -> None:
        """Return all held slots except those that a task of ``queue`` needs."""
        for other in self._held - {queue, RUN_QUEUE}:
            self._held.discard(other)
            self._slots.give_back(other)

    def release_all(self) -> None:
        while self._held:
            self._slots.give_back(self._held.pop())
