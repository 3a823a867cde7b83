"""The parts of one worker process, put together: service, leases, reaper, the guard of its agents."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import structlog
from celery import Celery, chain
from kombu.exceptions import OperationalError

from api_client.contract.settings import Settings
from api_client.contract.tasks import PROBE, Link, celery_settings, chain_of
from worker.processes.program import Program, bury, spawn
from worker.runners.guard import processes
from worker.runners.registry import build_runner
from worker.turns.judges import Judges
from worker.turns.leases.host import Host
from worker.turns.leases.lease import LeaseKeeper
from worker.turns.leases.pulse import Pulse, Work
from worker.turns.leases.reaper import Reaper
from worker.turns.record.ledger import Ledger
from worker.turns.service import TurnService

log = structlog.get_logger()

#: How often and how long at most a worker that ends waits until it takes no more messages, in seconds.
_LOOK_SECONDS, _DEAFEN_SECONDS = 0.01, 5.0


class Engine:
    """One worker process's engine. ``alone`` says that the process carries out a single link and then ends."""

    def __init__(self, settings: Settings, celery: Celery, *, alone: bool = False) -> None:
        self.settings = settings
        self.name = f"{socket.gethostname()}-{os.getpid()}"
        self.leases = LeaseKeeper(settings, self.name)
        self.host = Host(settings.sessions_dir)
        self.service = TurnService(
            settings,
            Ledger(settings, self.name),
            self.leases,
            build_runner,
            Judges(settings.validation_seconds),
            self.announce,
            self.isolate,
            self.host,
        )
        self._celery = celery
        self._quiet = Celery("helix-turns-probe", set_as_current=False)
        self._quiet.conf.update(celery_settings(settings) | {"task_send_sent_event": False})
        self._pulse: Pulse | None = None
        self._work: Work | None = None
        self._leaving = False
        self._reaper = None if alone else Reaper(settings, self.name, self.announce)
        self._grace_seconds = 0.0 if alone else settings.shutdown_seconds
        self._asked, self._ask = os.pipe()
        self._isolated: set[subprocess.Popen[bytes]] = set()
        self._lock = threading.Lock()

    def start(self) -> None:
        """Start the threads and the guard of the agents."""
        threading.Thread(target=self._wait_for_shut_down, name="shutdown", daemon=True).start()
        processes.shared().start()
        self.leases.start()
        if self._reaper:
            self._reaper.start()

    def show_pulse(self, work: Work, ready_file: Path | None) -> None:
        """From now on tell supervisor and operators that this worker takes messages."""
        self._work = work
        self._pulse = Pulse(self.settings, work, self.host, self._probe, ready_file)
        self._pulse.start()

    def _probe(self, queue: str) -> None:
        """Publish a message that does nothing. A failure tells nothing: the broker is away."""
        try:
            self._quiet.send_task(PROBE, kwargs={"queue": queue, "nonce": ""}, queue=queue, expires=60.0, retry=False)
        except (OperationalError, OSError) as error:
            log.info("probe.not_published", queue=queue, error=type(error).__name__)

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

    def isolate(self, link: Link, turn_id: str, session_id: str) -> None:
        """Carry out ``link`` in a process of its own, and wait for it: the turn has taken down workers before."""
        arguments = [link.task, str(link.attempt), turn_id, session_id]
        with self._lock:
            if self._leaving:
                return  # a reaper announces it again, to a worker that stays
            process = spawn(
                Program(
                    name="alone",
                    command=[sys.executable, "-P", "-m", "worker.processes.isolated", *arguments],
                    # Not SIGKILL: our own death must not look like the turn's fault.
                    death_signal=signal.SIGTERM,
                )
            )
            self._isolated.add(process)
        log.warning("turn.isolated", turn_id=turn_id, link=str(link), pid=process.pid)
        process.wait()
        with self._lock:
            self._isolated.discard(process)
        log.warning("turn.isolated_ended", turn_id=turn_id, link=str(link), exit_code=bury(process))

    def shut_down(self) -> None:
        """Let running agents finish for a while, then hand their turns over to other workers.

        For signal handlers: it takes no lock, because a second signal may find the first one's handler at work.
        """
        os.write(self._ask, b".")

    def _wait_for_shut_down(self) -> None:
        while os.read(self._asked, 1):
            asked_at = time.monotonic()
            self._wait_until_deaf()
            threading.Event().wait(max(0.0, asked_at + self._grace_seconds - time.monotonic()))
            self._hand_over()

    def _wait_until_deaf(self) -> None:
        """Wait until Celery takes no more messages: what is handed over before that can come back to us."""
        give_up = time.monotonic() + _DEAFEN_SECONDS
        while self._work and self._work.listens() and time.monotonic() < give_up:
            self._work.wake()
            threading.Event().wait(_LOOK_SECONDS)

    def _hand_over(self) -> None:
        """Stop every run of this process, begun or about to begin; their turns go to other workers without a strike."""
        self.leases.stop_all("shutdown")
        with self._lock:
            self._leaving = True
            for process in self._isolated:
                process.terminate()

    def close(self) -> None:
        """Stop the threads and whatever agent is left."""
        if self._pulse:
            self._pulse.close()
        if self._reaper:
            self._reaper.close()
        self.leases.close()
        processes.shared().stop()
