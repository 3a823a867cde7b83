"""Implement ``turns run worker``: supervised worker processes, or one process in the foreground."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import click

from api_client.contract.settings import Settings
from api_client.contract.settings.setting_faults import load_process_settings
from worker.cli.installation.start_checks import await_store, blame_store, run_in_fork
from worker.cli.output import count_noun
from worker.processes import own_programs, process_tuning
from worker.runners.claude.cli_program import missing_programs


def describe_capacity(settings: Settings, processes: int | None = None) -> str:
    """Describe how many agents and validations a worker with these settings runs at the same time."""
    shares = own_programs.share_slots(settings, processes)
    runs, checks = sum(share.run_slots for share in shares), sum(share.check_slots for share in shares)
    shown = "1 process" if len(shares) == 1 else f"{len(shares)} processes"
    return f"{count_noun(runs, 'agent')} and {count_noun(checks, 'validation')} at once, in {shown}"


@click.command(epilog="Example: turns run worker --processes 2")
@click.option("--processes", type=click.IntRange(1, 256), help="Number of processes; default: one per usable CPU.")
@click.option("--foreground", is_flag=True, help="Run a single process in the foreground, unsupervised.")
def worker(processes: int | None, foreground: bool) -> None:
    """Run a worker: processes that run agents and validate answers, by default one per CPU.

    Any number of workers may run, on one or many hosts, with the same broker and the same HELIX_ROOT. Processes that
    die are restarted. SIGTERM or Ctrl-C stops all; a second Ctrl-C stops them at once.
    """
    process_tuning.block_unused_packages()
    settings = load_process_settings(missing_programs)
    from worker.processes.restore_mark import require_complete_restore

    require_complete_restore(settings.root)
    state = own_programs.ensure_state_dir(settings)
    if foreground:
        await_store(settings)
        command = own_programs.worker_command(settings.run_slots, 1)
        os.chdir(state)
        os.execve(command[0], command, own_programs.build_environ(settings))  # noqa: S606 - no shell is meant

    from worker.logs import configure_logging
    from worker.processes.supervisor import Supervisor

    look_at_the_store = run_in_fork(lambda stops: await_store(settings, stops))  # meanwhile the worker processes start

    def announce_stop_from_child() -> None:
        """Announce the stop from a child process, so that this process need not import anything."""
        imports = "from worker.cli.installation.stop_announcement import announce_stop_from_environment as announce"
        tuning = "from worker.processes.process_tuning import import_without_unused"
        asks = f"{tuning}\nwith import_without_unused():\n    {imports}\nannounce()"
        with contextlib.suppress(OSError, subprocess.SubprocessError):  # a machine short of resources still stops
            subprocess.run(
                [sys.executable, "-P", "-c", asks],
                env=own_programs.build_environ(settings),
                check=False,
                timeout=10,
            )

    def touch_ready_file() -> None:
        """Touch the file that the container's liveness check reads, as long as all processes accept messages."""
        if ready := os.environ.get(own_programs.READY_VARIABLE):
            with contextlib.suppress(OSError):  # a full disk must not stop the worker
                Path(ready).touch()

    configure_logging(settings)
    started = own_programs.worker_programs(settings, processes)
    try:
        with blame_store(settings):
            Supervisor(started, show=touch_ready_file, on_exit=own_programs.build_exit_handler(settings)).run(
                lambda: click.echo(f"worker ready: {describe_capacity(settings, processes)}"),
                announce_stop_from_child,
                meanwhile=look_at_the_store,
            )
    finally:
        for program in started:
            if program.ready_file:
                program.ready_file.unlink(missing_ok=True)
