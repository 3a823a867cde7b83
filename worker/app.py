"""The Celery application and what a worker process needs around it. Run it with ``turns worker``."""

from __future__ import annotations

import os
import socket
import threading
from functools import cache
from pathlib import Path
from typing import Any

import structlog
from celery import Celery, chain, signals
from kombu.exceptions import OperationalError

from api_client.contract.settings import Settings, load, require_store
from api_client.contract.tasks import Link, celery_settings, chain_of
from worker.logs import configure_logging
from worker.runners import processes
from worker.runners.registry import build_runner
from worker.turns.lease import LeaseKeeper
from worker.turns.ledger import Ledger
from worker.turns.reaper import Reaper
from worker.turns.service import TurnService
from worker.turns.tasks import register

log = structlog.get_logger()

#: Set by ``turns worker``: a file that is touched once this process takes work.
READY_FILE = "HELIX_AGENT_READY_FILE"


class Engine:
    """The parts of one worker process: service, leases, reaper."""

    def __init__(self, settings: Settings, celery: Celery) -> None:
        self.settings = settings
        self._celery = celery
        self.name = f"{socket.gethostname()}-{os.getpid()}"
        self.leases = LeaseKeeper(settings, self.name)
        self.reaper = Reaper(settings, self.name, self.announce)
        self.service = TurnService(settings, Ledger(settings, self.name), self.leases, build_runner, self.announce)

    def start(self) -> None:
        """Start the threads and the guard of the agents."""
        processes.shared().start()
        self.leases.start()
        self.reaper.start()

    def announce(self, link: Link, turn_id: str, session_id: str) -> None:
        """Publish the chain that carries out ``link``. A failure is logged only: a reaper announces it again."""
        signatures = [
            self._celery.signature(item["name"], kwargs=item["kwargs"], queue=item["queue"], immutable=True)
            for item in chain_of(link, turn_id, session_id)
        ]
        try:
            chain(*signatures).apply_async(retry=False)
        except (OperationalError, OSError) as error:
            log.warning("turn.announce_failed", turn_id=turn_id, link=str(link), error=type(error).__name__)

    def shut_down(self) -> None:
        """Let running agents finish for a while, then hand their turns over to other workers."""
        timer = threading.Timer(self.settings.shutdown_seconds, self.leases.stop_all, args=("shutdown",))
        timer.daemon = True
        timer.start()

    def close(self) -> None:
        """Stop the threads and whatever agent is left."""
        self.reaper.close()
        self.leases.close()
        processes.shared().stop()


def create_app(settings: Settings) -> Celery:
    """The Celery application of a worker with these settings."""
    celery = Celery("helix-turns", set_as_current=False)
    celery.conf.update(celery_settings(settings))
    register(celery, lambda: engine().service)
    return celery


@cache
def _settings() -> Settings:
    settings = require_store(load())
    configure_logging(settings)
    return settings


@cache
def engine() -> Engine:
    """The engine of this process, made when the worker starts."""
    return Engine(_settings(), app)


app = create_app(_settings())


@signals.worker_ready.connect
def _on_ready(**_: Any) -> None:
    engine().start()
    log.info("worker.ready", worker=engine().name)
    if ready := os.environ.get(READY_FILE):
        Path(ready).touch()


@signals.worker_shutting_down.connect
def _on_shutting_down(**_: Any) -> None:
    engine().shut_down()


@signals.worker_shutdown.connect
def _on_shutdown(**_: Any) -> None:
    engine().close()
