"""Announces a turn's next task to Celery. A reaper repeats lost announcements."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from celery import Celery, chain
from kombu.exceptions import OperationalError

from api_client.broker.celery_message import celery_settings
from api_client.contract.settings import Settings
from api_client.contract.tasks import PROBE, ChainTask, build_chain
from api_client.store.module_log import ModuleLog

log = ModuleLog(__name__)

#: Longest wait of a caller for the broker, in seconds; afterwards a reaper announces the turn.
_PATIENCE_SECONDS = 0.5


def publish_chain(app: Celery, items: Iterable[Mapping[str, Any]], **family: Any) -> None:
    """Publish tasks as a Celery chain. Keyword arguments give the ids of the parent tasks."""
    tasks = (app.signature(one["name"], kwargs=one["kwargs"], queue=one["queue"], immutable=True) for one in items)
    chain(*tasks).apply_async(retry=False, **family)


class Announcer:
    """Publishes Celery tasks from an event loop, with a separate thread for the blocking work."""

    def __init__(self, settings: Settings) -> None:
        self._app = Celery("helix-turns-client", set_as_current=False)
        self._app.conf.update(celery_settings(settings))
        # Probes are hidden from operators.
        self._quiet = Celery("helix-turns-probe", set_as_current=False)
        self._quiet.conf.update(celery_settings(settings) | {"task_send_sent_event": False})
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="announce")

    async def announce_task(
        self, chain_task: ChainTask, turn_id: str, session_id: str, *, preferred: bool = False
    ) -> None:
        """Publish a turn's task to Celery. Failures are only logged, because the turn is already stored.

        ``preferred`` turns have waited before, and precede turns that were just submitted.
        """
        loop = asyncio.get_running_loop()
        publishing = loop.run_in_executor(self._thread, self._publish_task, chain_task, turn_id, session_id, preferred)
        done, _ = await asyncio.wait([publishing], timeout=_PATIENCE_SECONDS)
        if not done:
            log.warning("turn.announce_slow", turn_id=turn_id, chain_task=str(chain_task), seconds=_PATIENCE_SECONDS)

    async def publish_probe(self, queue: str, nonce: str, *, expires: float) -> None:
        """Publish a probe message that expires after ``expires`` seconds, to test whether a worker reads the queue."""
        publishing = asyncio.get_running_loop().run_in_executor(self._thread, self._send_probe, queue, nonce, expires)
        await asyncio.wait([publishing], timeout=_PATIENCE_SECONDS)

    def _send_probe(self, queue: str, nonce: str, expires: float) -> None:
        try:
            self._quiet.send_task(
                PROBE, kwargs={"queue": queue, "nonce": nonce}, queue=queue, expires=expires, retry=False
            )
        except (OperationalError, OSError) as error:
            log.warning("probe.not_published", queue=queue, error=type(error).__name__)

    def _publish_task(self, chain_task: ChainTask, turn_id: str, session_id: str, preferred: bool) -> None:
        try:
            publish_chain(self._app, build_chain(chain_task, turn_id, session_id, preferred=preferred))
        except Exception as error:  # nobody reads this thread's result, so log every error here
            log.warning("turn.announce_failed", turn_id=turn_id, chain_task=str(chain_task), error=type(error).__name__)

    def close(self) -> None:
        """Stop the publishing thread. Unpublished tasks are announced by a worker."""
        self._thread.shutdown(wait=False, cancel_futures=True)
