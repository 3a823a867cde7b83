"""Run a program under limits: ``python -S -P -m worker.runners.sandbox.rlimits MEMORY_MB PROGRAM ARGUMENT...``."""

from __future__ import annotations

import contextlib
import os
import resource
import sys

#: Exit code of a program that cannot be started, as in shells.
CANNOT_RUN = 127
_MAX_FILE = 2**30


def main() -> int:
    """Set the resource limits, then replace this process with the program named on the command line."""
    os.dup2(sys.stdout.fileno(), sys.stderr.fileno())
    memory = int(sys.argv[1]) * 2**20
    for kind, amount in ((resource.RLIMIT_AS, memory), (resource.RLIMIT_FSIZE, _MAX_FILE), (resource.RLIMIT_CORE, 0)):
        if amount or kind == resource.RLIMIT_CORE:
            _lower_limit(kind, amount)
    # The program must not import the worker's packages.
    os.environ.pop("PYTHONPATH", None)
    try:
        os.execvp(sys.argv[2], sys.argv[2:])  # noqa: S606 - this is what it is for
    except OSError as error:
        print(f"{sys.argv[2]}: {error.strerror}", flush=True)  # noqa: T201 - its output is the report
    return CANNOT_RUN


def _lower_limit(kind: int, amount: int) -> None:
    _, hard = resource.getrlimit(kind)
    if hard == resource.RLIM_INFINITY or amount < hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(kind, (amount, amount))


if __name__ == "__main__":
    sys.exit(main())
