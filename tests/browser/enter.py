"""``make bench-openwebui``: seconds from Enter to the first status line and to the first text, in the real Open WebUI.

Once with a connection of chat completions, once with one of type Responses.
The agent is scripted and answers at once, so the figures are what page, relay, queue and worker add. An observer in the
page takes the times. Prints the median and the slowest of the runs, beside the goal on an idle machine, and how much of
the machine other work took meanwhile.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

from tests.browser.browsing import installation
from tests.browser.conftest import HEADERS
from tests.browser.test_installed import printed_environ
from tests.browser.webui import HERE, drive, missing, open_webui
from tests.lab.bench.turns.costs import cpu_ms, machine_busy_ms

RUNS = 6
#: What is looked for in the message that appears: a pattern each.
MARKS = {"status": "The agent|Queued|Checked", "text": "A short"}
#: Type of the connection -> goals in seconds from Enter, on an idle machine.
GOALS = {"chat completions": {"status": 0.3, "text": 0.4}, "responses": {"status": 1.0, "text": 1.0}}


def main() -> None:
    """Ask some times over each type of connection, each in a new chat, and print the times."""
    if reason := missing():
        sys.exit(f"make bench-openwebui: {reason}")
    given = {
        "HELIX_MODELS": f"helix=scripted:{HERE / 'installed.yaml'}",
        "HELIX_LOCALE": "en",
    }
    for kind, goals in GOALS.items():
        with (
            tempfile.TemporaryDirectory() as folder,
            installation(Path(folder), "--no-flower", **given) as told,
        ):
            environ = printed_environ(told, "any") | {"WEBUI_AUTH": "False"}
            if kind == "responses":
                connection = {"api_type": kind, "headers": HEADERS}
                environ["OPENAI_API_CONFIGS"] = json.dumps({"0": connection})
            with open_webui(Path(folder, "openwebui"), environ) as address:
                measure(kind, goals, address, Path(folder, "openwebui"))


def measure(kind: str, goals: dict[str, float], address: str, data: Path) -> None:
    """Ask some times at one page, and print the times beside their goals."""
    asked = [{"name": str(run), "text": "A short answer please", "marks": MARKS} for run in range(RUNS + 1)]
    busy, own, begun = machine_busy_ms(), cpu_ms(os.getpid()), time.monotonic()
    seen = drive(address, data, *asked)
    others = machine_busy_ms() - busy - (cpu_ms(os.getpid()) - own)
    share = max(0.0, others / 1000) / ((time.monotonic() - begun) * (os.cpu_count() or 1))
    runs = [seen[str(run)]["seconds"] for run in range(1, RUNS + 1)]  # the first one warms up
    print(
        f"connection of {kind}: seconds from Enter, {RUNS} runs; other work took {share:.0%} of the machine, "
        f"load {os.getloadavg()[0]:.1f}"
    )
    for mark, goal in goals.items():
        times = [run[mark] for run in runs]
        print(f"first {mark:6}  median {statistics.median(times):.2f}  slowest {max(times):.2f}  goal {goal}")


if __name__ == "__main__":
    main()
