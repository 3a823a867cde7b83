"""``turns worker``: both Celery workers under a supervisor, or one of them in the foreground."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import click

from api_client.contract.settings import load, require_store
from worker.processes import programs


@click.command()
@click.option("--only", type=click.Choice(programs.ROLES), help="Run this one in the foreground, unsupervised.")
def worker(only: str | None) -> None:
    """Run the workers: one Celery worker for agents (`run`), one for judging answers (`check`).

    Several may run on one host or on many; they share the broker, and HELIX_ROOT must be the same folder for all.
    A worker that dies is started again. SIGTERM or Ctrl-C ends both; a second Ctrl-C does so at once.
    """
    settings = require_store(load())
    from worker.backup.restoring import require_whole
    from worker.turns.record.store import require_shards

    require_whole(settings.root)
    require_shards(settings)
    state = programs.state_dir(settings)
    if only:
        command = programs.worker_command(settings, only)
        os.chdir(state)
        os.execve(command[0], command, programs.environ_of(settings))  # noqa: S606 - no shell is meant

    from worker.logs import configure_logging
    from worker.processes.supervisor import Supervisor

    def tell() -> None:
        click.echo(f"workers ready: {settings.run_slots} agents at once, {settings.check_slots} judges")

    def show() -> None:
        """For a liveness check: the file is touched while both take messages (compose/compose.yaml asks for it)."""
        if ready := os.environ.get(programs.READY_VARIABLE):
            with contextlib.suppress(OSError):  # a disk that takes no writes does not end what else goes on
                Path(ready).touch()

    configure_logging(settings)
    started = programs.workers(settings)
    try:
        Supervisor(started, show=show).run(tell)
    finally:
        for program in started:
            if program.ready_file:
                program.ready_file.unlink(missing_ok=True)
