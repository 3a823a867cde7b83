"""Reports to the store how worker processes ended, so that a dead letter can name the cause."""

from __future__ import annotations

import contextlib
import queue
import threading
import time

import structlog

from api_client.contract.errors import SettingsError
from api_client.contract.process_exit import ProcessExit
from api_client.contract.settings import Settings
from worker.processes.program import REFUSED

log = structlog.get_logger()

#: How long to retry while the store is away, and the wait between retries, in seconds.
_PATIENCE_SECONDS, _PAUSE_SECONDS = 60.0, 0.5


class ExitReporter:
    """Reports exits of worker processes to the store in order, from a thread, trying each for at most a minute."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._waiting: queue.SimpleQueue[ProcessExit] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def report_exit(self, worker: str, pid: int, code: int) -> None:
        """Queue a report that a worker's process exited with this code, and return at once."""
        self._waiting.put(ProcessExit(worker=worker, pid=pid, code=code))
        if self._thread is None:
            self._thread = threading.Thread(target=self._send_reports, name="exit-notes", daemon=True)
            self._thread.start()

    def _send_reports(self) -> None:
        import asyncio

        from redis.exceptions import RedisError  # imported late, so that a supervisor starts sooner

        from api_client.store.unfinished_restore import refuse_unfinished_restore
        from api_client.workers.reports import store_exit

        while self._settings.store_url:
            ended = self._waiting.get()
            give_up = time.monotonic() + _PATIENCE_SECONDS
            while time.monotonic() < give_up:
                with contextlib.suppress(RedisError):
                    asyncio.run(store_exit(self._settings, ended))
                    break
                time.sleep(_PAUSE_SECONDS)
            else:
                log.warning("exit.not_noted", worker=ended.worker, pid=ended.pid, exit_code=ended.code)
            if ended.code == REFUSED:
                try:
                    refuse_unfinished_restore(self._settings)
                except SettingsError as error:
                    log.error("worker.refused", worker=ended.worker, error=str(error))
