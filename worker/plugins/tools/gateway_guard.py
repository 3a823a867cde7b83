"""Starts a worker's tool gateway, and kills what is left of it: ``python -P -m ...gateway_guard FD WORKER``.

A gateway ends by itself after its worker, once its calls have ended. This process kills a gateway that cannot, because
its event loop is blocked or it is stopped.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
from collections.abc import Sequence

from worker.runners.sandbox import process_tags

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
#: Seconds for which a gateway may live after its worker: 30 for calls under way, 10 for the ends of servers.
_TO_END_SECONDS = 45.0


def guard_gateway(command: Sequence[str], descriptor: int, worker: int, seconds: float = _TO_END_SECONDS) -> int:
    """Run a gateway process, and return its exit code once all of the gateway's processes have ended.

    The gateway inherits ``descriptor``. ``worker`` is the parent's process id, and ``seconds`` how long the gateway may
    outlive the parent.
    """
    libc, guard = ctypes.CDLL(None), os.getpid()
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # servers whose gateway died become children of this process

    def die_with_guard() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != guard:
            os._exit(1)

    # Safe: this process has one thread.
    gateway = subprocess.Popen(command, pass_fds=[descriptor], preexec_fn=die_with_guard)
    os.close(descriptor)  # the worker must see it closed when the gateway dies
    with contextlib.suppress(OSError):  # kernels without pidfd: the gateway ends by itself alone
        ended = os.pidfd_open(gateway.pid)
        with contextlib.suppress(ProcessLookupError):
            watched = [ended, os.pidfd_open(worker)]
            if os.getppid() == worker:
                select.select(watched, [], [])
        if not select.select([ended], [], [], seconds)[0]:
            gateway.kill()
    code = gateway.wait()
    with contextlib.suppress(ChildProcessError):
        while True:  # servers, and the children that they leave behind
            for pid in process_tags.children_of(guard):
                process_tags.send_signal(pid)
            os.waitpid(-1, 0)
    return code


if __name__ == "__main__":
    # Handlers, not SIG_IGN: the gateway would inherit ignored signals. Only the worker may end this process.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    gateway = [sys.executable, "-P", "-m", "worker.plugins.tools.gateway_process", sys.argv[1]]
    sys.exit(guard_gateway(gateway, *map(int, sys.argv[1:])))
