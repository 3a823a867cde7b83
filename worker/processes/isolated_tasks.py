"""Runs the tasks of turns that have killed workers in separate processes."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading

import structlog

from api_client.contract.settings import Settings
from api_client.contract.tasks import ChainTask
from worker.processes.exit_reports import ExitReporter
from worker.processes.program import Program, reap_process, spawn_program

log = structlog.get_logger()


class IsolatedTasks:
    """Runs tasks in separate processes, so that a crash does not take down the worker."""

    def __init__(self, settings: Settings) -> None:
        self._exits = ExitReporter(settings)
        self._processes: set[subprocess.Popen[bytes]] = set()
        self._leaving = False
        self._lock = threading.Lock()

    def run_task(self, chain_task: ChainTask, turn_id: str, session_id: str) -> None:
        """Run a task in a separate process, and wait until the process ends."""
        arguments = [chain_task.task, str(chain_task.attempt), turn_id, session_id]
        with self._lock:
            if self._leaving:
                return  # a reaper announces the task again, to a worker that stays
            process = spawn_program(
                Program(
                    name="alone",
                    command=[sys.executable, "-P", "-m", "worker.isolated", *arguments],
                    # Not SIGKILL: our own death must not look like the turn's fault.
                    death_signal=signal.SIGTERM,
                )
            )
            self._processes.add(process)
        log.warning("turn.isolated", turn_id=turn_id, chain_task=str(chain_task), pid=process.pid)
        process.wait()
        with self._lock:
            self._processes.discard(process)
        if code := reap_process(process):
            self._exits.report_exit(f"alone-{process.pid}@{socket.gethostname()}", process.pid, code)
        log.warning("turn.isolated_ended", turn_id=turn_id, chain_task=str(chain_task), exit_code=code)

    def stop_all(self) -> None:
        """Terminate all separate processes, which hand their turns over, and start no new ones."""
        with self._lock:
            self._leaving = True
            for process in self._processes:
                process.terminate()
