"""``make bench-openwebui``: seconds from Enter to the first status line and to the first text, in the real Open WebUI.

The agent is scripted and answers at once, so the figures are what page, relay, queue and worker add. An observer in the
page takes the times. Prints the median and the slowest of the runs, beside the goal on an idle machine, and how much of
the machine other work took meanwhile.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

from tests.bench.turns.costs import cpu_ms, machine_busy_ms
from tests.browser.browsing import installation
from tests.browser.test_installed import printed_environ
from tests.browser.webui import HERE, drive, free_port, missing, open_webui

RUNS = 6
#: What is looked for in the message that appears: a pattern each.
MARKS = {"status": "The agent|Queued|Checked", "text": "A short"}
#: Seconds from Enter, on an idle machine.
GOALS = {"status": 0.3, "text": 0.4}


def main() -> None:
    """Ask some times, each in a new chat, and print the times."""
    if reason := missing():
        sys.exit(f"make bench-openwebui: {reason}")
    given = {
        "HELIX_MODELS": f"helix=scripted:{HERE / 'installed.yaml'}",
        "HELIX_LOCALE": "en",
        "HELIX_FLOWER_PORT": "0",
    }
    with (
        tempfile.TemporaryDirectory() as folder,
        installation(Path(folder), HELIX_WEB_PORT=str(free_port()), **given) as told,
        open_webui(Path(folder, "openwebui"), printed_environ(told, "any") | {"WEBUI_AUTH": "False"}) as address,
    ):
        asked = [{"name": str(run), "text": "A short answer please", "marks": MARKS} for run in range(RUNS + 1)]
        busy, own, begun = machine_busy_ms(), cpu_ms(os.getpid()), time.monotonic()
        seen = drive(address, Path(folder, "openwebui"), *asked)
        others = machine_busy_ms() - busy - (cpu_ms(os.getpid()) - own)
        share = max(0.0, others / 1000) / ((time.monotonic() - begun) * (os.cpu_count() or 1))
    runs = [seen[str(run)]["seconds"] for run in range(1, RUNS + 1)]  # the first one warms up
    print(f"seconds from Enter, {RUNS} runs; other work took {share:.0%} of the machine, load {os.getloadavg()[0]:.1f}")
    for mark, goal in GOALS.items():
        times = [run[mark] for run in runs]
        print(f"first {mark:6}  median {statistics.median(times):.2f}  slowest {max(times):.2f}  goal {goal}")


if __name__ == "__main__":
    main()
