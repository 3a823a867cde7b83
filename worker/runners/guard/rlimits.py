"""Start a program under limits: ``python -S -P -m worker.runners.guard.rlimits MEMORY_MB PROGRAM ARGUMENT...``.

It becomes the program, with standard error joined to standard output, so that both stay in order. Standard library
only. Run by gates as a child of the guard, which sees to time, session and process tree.
"""

from __future__ import annotations

import contextlib
import os
import resource
import sys

#: Exit code when the program cannot be started, as shells have it.
CANNOT_RUN = 127
#: Largest file a program may write, in bytes.
_MAX_FILE = 2**30


def main() -> int:
    """Set the limits and become the program; returns only when that fails."""
    os.dup2(sys.stdout.fileno(), sys.stderr.fileno())
    memory = int(sys.argv[1]) * 2**20
    for kind, amount in ((resource.RLIMIT_AS, memory), (resource.RLIMIT_FSIZE, _MAX_FILE), (resource.RLIMIT_CORE, 0)):
        if amount or kind == resource.RLIMIT_CORE:
            _limit(kind, amount)
    # The program does not search our packages: its own come first.
    os.environ.pop("PYTHONPATH", None)
    try:
        os.execvp(sys.argv[2], sys.argv[2:])  # noqa: S606 - this is what it is for
    except OSError as error:
        print(f"{sys.argv[2]}: {error.strerror}", flush=True)  # noqa: T201 - its output is the report
    return CANNOT_RUN


def _limit(kind: int, amount: int) -> None:
    """Lower one limit; a lower one stays."""
    _, hard = resource.getrlimit(kind)
    if hard == resource.RLIM_INFINITY or amount < hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(kind, (amount, amount))


if __name__ == "__main__":
    sys.exit(main())
