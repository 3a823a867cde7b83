"""Runs one worker process, like ``celery worker`` without importing Celery's command line (0.3 s of CPU)."""

from __future__ import annotations

import argparse
import gc
import sys

from worker.processes import process_tuning

process_tuning.block_unused_packages()
gc.disable()  # saves a sixth of the import time; main() enables garbage collection again

from celery.utils.log import mlevel  # noqa: E402
from celery.utils.nodenames import default_nodename, host_format  # noqa: E402

from worker.app import app, engine  # noqa: E402
from worker.processes.program import STAYS_DOWN  # noqa: E402

#: Seconds between heartbeats for Flower, which gives up a worker after twice the time.
HEARTBEAT_SECONDS = 6.0


def main(arguments: list[str] | None = None) -> None:
    """Run a Celery worker process until a signal stops it, and exit with the worker's exit code."""
    parser = argparse.ArgumentParser(prog="worker.celery_worker")
    parser.add_argument("-n", dest="name", required=True, help="NAME@%%h")
    parser.add_argument("-c", dest="slots", type=int, required=True)
    parser.add_argument("--loglevel", default="info")
    options = parser.parse_args(arguments)
    gc.freeze()  # exempt all imported objects from garbage collection
    gc.enable()
    process_tuning.raise_open_file_limit()
    worker = app.Worker(
        hostname=host_format(default_nodename(options.name)),
        concurrency=options.slots,
        loglevel=mlevel(options.loglevel.upper()),
        task_events=True,
        heartbeat_interval=HEARTBEAT_SECONDS,
        without_gossip=True,
        without_mingle=True,
        quiet=True,
    )
    worker.start()
    sys.exit(STAYS_DOWN if engine().stays_down else worker.exitcode or 0)


if __name__ == "__main__":
    main()
