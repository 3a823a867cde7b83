"""``python -m tests.browser.strike ROOT worker|relay|broker [URL]``: SIGKILL to a process of a running ``turns up``.

Returns when another process stands in its place, and answers at the URL where one is given.
"""

import contextlib
import os
import signal
import sys
from pathlib import Path

from tests.browser.webui import answers
from tests.support import processes_with, wait_for

#: Process -> what stands in its command line alone.
_NAMES = {"worker": " -n worker-", "relay": " run relay --host ", "broker": "valkey-server "}


def strike(root: str, name: str, url: str = "") -> None:
    """Kill the process, and wait for the next one."""
    old = found(root, name)
    assert old, f"no {name} runs in {root}"
    for pid in old:
        os.kill(pid, signal.SIGKILL)
    wait_for(lambda: found(root, name) - old)
    wait_for(lambda: not url or answers(url))


def found(root: str, name: str) -> set[int]:
    """The ids of the processes of this name in the installation of ``root``."""
    known = processes_with(root) | (_at_home(root) if name == "broker" else {})
    return {pid for pid, command in known.items() if _NAMES[name] in f"{command} " and "aof" not in command}


def _at_home(root: str) -> dict[int, str]:
    """Processes that work in a folder below ``root``, with their command lines.

    A broker whose socket's path would be too long has its socket elsewhere, and writes that path over its command line.
    """
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (entry / "cwd").readlink().is_relative_to(root):
                found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return found


if __name__ == "__main__":
    strike(*sys.argv[1:])
