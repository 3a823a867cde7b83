"""One process of a worker.

Celery's worker without Celery's command line, which imports every sub-command and plug-in (0.3 s of processor).
``python -m worker.celery_worker -n NAME -c SLOTS --loglevel LEVEL`` does what ``celery worker`` does with task events,
and neither gossip nor mingle. The working directory, where agents may write, stays off the import path.
"""

from __future__ import annotations

import argparse
import gc
import sys

from worker.processes import lean

lean.leave_out_unused()
gc.disable()  # a sixth of what the imports take; main() looks for garbage again

from celery.utils.log import mlevel  # noqa: E402
from celery.utils.nodenames import default_nodename, host_format  # noqa: E402

from worker.app import app, engine  # noqa: E402
from worker.processes.program import STAYS_DOWN  # noqa: E402

#: How often a process says to Flower that it is there. Flower takes it for gone after twice the time.
HEARTBEAT_SECONDS = 6.0


def main(arguments: list[str] | None = None) -> None:
    """Run the worker until a signal ends it; exits with its code."""
    parser = argparse.ArgumentParser(prog="worker.celery_worker")
    parser.add_argument("-n", dest="name", required=True, help="NAME@%%h")
    parser.add_argument("-c", dest="slots", type=int, required=True)
    parser.add_argument("--loglevel", default="info")
    options = parser.parse_args(arguments)
    gc.freeze()  # else the first look goes through all that was imported
    gc.enable()
    lean.lift_open_files()
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
