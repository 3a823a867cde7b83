"""A thread of a worker process that looks at the store again and again."""

from __future__ import annotations

import threading
from collections.abc import Callable

import structlog
from redis.exceptions import RedisError

log = structlog.get_logger()


class Poller:
    """Calls ``look`` every so many seconds until it is closed. No fault ends it: what it does would stay undone.

    Attributes:
        name: of the thread, in its log lines.
        closing: set once it is to stop.
    """

    def __init__(self, name: str, look: Callable[[], None], seconds: float) -> None:
        self.name, self._look, self._seconds = name, look, seconds
        self.closing = threading.Event()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)

    @property
    def started(self) -> bool:
        """Whether it was started; it may have ended since."""
        return self._thread.ident is not None

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """Stop after the present round, without waiting for it."""
        self.closing.set()

    def _work(self) -> None:
        away = False
        while not self.closing.wait(self._seconds):
            try:
                self._look()
                if away:
                    away = False
                    log.info("store.back", thread=self.name)
            except RedisError as error:
                if not away:  # once, however long it lasts
                    away = True
                    log.warning("store.away", thread=self.name, error=type(error).__name__)
            except Exception:
                if not self.closing.is_set():
                    log.exception("poll.failed", thread=self.name)
