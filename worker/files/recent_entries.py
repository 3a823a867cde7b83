"""A thread-safe cache of the most recent entries."""

from __future__ import annotations

import threading
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class RecentEntries(Generic[K, V]):
    """A mapping that keeps only the ``most`` most recently stored keys. Thread-safe."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: dict[K, V] = {}
        self._lock = threading.Lock()

    def get(self, key: K) -> V | None:
        return self._kept.get(key)

    def put(self, key: K, value: V) -> None:
        """Store a value for a key. Drop the oldest key if there are too many."""
        with self._lock:
            self._kept.pop(key, None)
            self._kept[key] = value
            while len(self._kept) > self._most:
                del self._kept[next(iter(self._kept))]
