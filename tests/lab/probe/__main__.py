"""``python -m tests.lab.probe``: every way out that an agent with a shell may try, with and without a sandbox."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from api_client.contract.settings import Settings
from tests.lab.probe.trial import reached
from tests.lab.probe.ways import WAYS
from worker.logs import configure_logging
from worker.runners.sandbox import bubblewrap


def main() -> None:
    """Print each way of docs/security.md, as it is on this machine and for this user."""
    configure_logging(Settings(log_level="error"))  # standard output is the table's
    problem = bubblewrap.find_network_obstacle()
    levels = {"no sandbox": "off"} | ({} if problem else {"sandbox": "required", "sandbox made ahead": "required"})
    found = {}
    for level, mode in levels.items():
        with tempfile.TemporaryDirectory(prefix="helix-probe-", dir="/tmp") as folder:
            found[level] = reached(Path(folder), mode, ahead="ahead" in level)
    print(f"| Way out, tried as {'root' if os.geteuid() == 0 else 'a user'} | {' | '.join(levels)} |")
    print("| --- |" + " --- |" * len(levels))
    for way in WAYS:
        print(f"| {way} | {' | '.join('**open**' if found[level][way] else 'closed' for level in levels)} |")
    for level, ways in found.items():
        print(f"\n{level}: {sum(ways.values())} of {len(ways)} open", end="")
    print(f"\n\nno sandbox was tried: {problem}" if problem else "")


if __name__ == "__main__":
    main()
