"""``python -m tests.browser.strike ROOT worker|relay|broker [URL]``: SIGKILL to a process of a running ``turns up``.

Returns when another process stands in its place, and answers at the URL where one is given.
"""

from __future__ import annotations

import os
import signal
import sys

from tests.browser.webui import answers
from tests.support import processes_with, wait_for

#: Process -> what stands in its command line alone.
_NAMES = {"worker": " -n worker-", "relay": "main(['web'])", "broker": "valkey-server "}


def strike(root: str, name: str, url: str = "") -> None:
    """Kill the process, and wait for the next one."""
    old = _found(root, name)
    assert old, f"no {name} runs in {root}"
    for pid in old:
        os.kill(pid, signal.SIGKILL)
    wait_for(lambda: _found(root, name) - old)
    wait_for(lambda: not url or answers(url))


def _found(root: str, name: str) -> set[int]:
    return {
        pid for pid, command in processes_with(root).items() if _NAMES[name] in f"{command} " and "aof" not in command
    }


if __name__ == "__main__":
    strike(*sys.argv[1:])
