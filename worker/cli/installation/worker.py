"""``turns worker``: the processes of a worker under a supervisor, or one process in the foreground."""

from __future__ import annotations

import contextlib
import os
import threading
from dataclasses import replace
from pathlib import Path

import click

from api_client.contract.settings import Settings, load, require_store
from worker.cli.installation import starting
from worker.cli.output import number_of
from worker.processes import lean, programs


def capacity(settings: Settings) -> str:
    """Return what a worker with these settings can do at once."""
    shares = programs.shares(settings)
    runs, checks = sum(share.run_slots for share in shares), sum(share.check_slots for share in shares)
    processes = "1 process" if len(shares) == 1 else f"{len(shares)} processes"
    return f"{number_of(runs, 'agent')} and {number_of(checks, 'judge')} at once, in {processes}"


@click.command()
@click.option("--processes", type=click.IntRange(1, 256), help="How many processes; else HELIX_WORKER_PROCESSES.")
@click.option("--foreground", is_flag=True, help="Run a single process in the foreground, unsupervised.")
def worker(processes: int | None, foreground: bool) -> None:
    """Run a worker: processes that run agents and judge answers, one for each CPU by default.

    Several may run on one host or on many; they share the broker, and HELIX_ROOT must be the same folder for all.
    A process that dies is started again. SIGTERM or Ctrl-C ends all; a second Ctrl-C does so at once.
    """
    lean.leave_out_unused()
    settings = require_store(load())
    from worker.backup.restore_mark import require_whole

    require_whole(settings.root)
    starting.warn(settings)
    starting.require_programs(settings)
    if processes:
        settings = replace(settings, worker_processes=processes)
    state = programs.state_dir(settings)
    if foreground:
        starting.require_store_of(settings)
        command = programs.worker_command(settings, 1)
        os.chdir(state)
        os.execve(command[0], command, programs.environ_of(settings))  # noqa: S606 - no shell is meant

    from worker.logs import configure_logging
    from worker.processes.supervisor import Supervisor

    def look_at_the_store(stops: threading.Event) -> None:
        """While the processes start."""
        from worker.cli.installation import stopping  # noqa: F401 - needed in the end, when the files may be newer

        starting.require_store_of(settings, stops)

    def say_what_it_waits_for() -> None:
        from worker.cli.installation import stopping

        stopping.say_what_it_waits_for(settings)

    def say_ready() -> None:
        click.echo(f"worker ready: {capacity(settings)}")

    def show() -> None:
        """For a liveness check: the file is touched while all take messages (compose/compose.yaml asks for it)."""
        if ready := os.environ.get(programs.READY_VARIABLE):
            with contextlib.suppress(OSError):  # a disk that takes no writes does not end what else goes on
                Path(ready).touch()

    configure_logging(settings)
    started = programs.workers(settings)
    try:
        with starting.store_named(settings):
            Supervisor(started, show=show, on_exit=programs.noting_exits(settings)).run(
                say_ready, say_what_it_waits_for, meanwhile=look_at_the_store
            )
    finally:
        for program in started:
            if program.ready_file:
                program.ready_file.unlink(missing_ok=True)
