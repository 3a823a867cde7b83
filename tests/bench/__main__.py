"""``make bench``: ours beside plain Celery, interleaved, in one run of under three minutes."""

from __future__ import annotations

import argparse
import asyncio
import importlib
import importlib.util
import json
import os
import random
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from api_client.contract.settings import Settings
from tests.bench import report
from tests.bench.measure import Figures, Load, commands, measure
from tests.bench.ours import Ours
from tests.bench.plain import Plain
from tests.bench.side import Side
from tests.bench.work import BURST, PACED, RETRIED, VALID
from worker.logs import configure_logging

#: The rows: side, kind of turn. Each of ours stands beside the plain one with as many runs.
ROWS = {
    "plain": ("plain", VALID),
    "ours": ("ours", VALID),
    "plain x2": ("plain", RETRIED),
    "ours x2": ("ours", RETRIED),
}


@dataclass
class Plan:
    """How much is measured. The defaults take about two minutes on two cores."""

    rounds: int = 5
    load: Load = field(default_factory=lambda: Load(alone=100, together=200, in_flight=50))
    watched: int = 10
    durability: str = "everysec"
    log_level: str = "info"
    #: No further round is begun after so many seconds.
    seconds: float = 150.0


async def run(plan: Plan, say: report.Say) -> dict[str, Any]:
    """Measure, and return everything that was seen, JSON-ready."""
    started = time.monotonic()
    configure_logging(Settings(log_level="warning"))  # this process: client and supervisor
    context = report.context(plan.durability)
    with tempfile.TemporaryDirectory(prefix="helix-bench-", ignore_cleanup_errors=True) as directory:
        made = (Path(directory), plan.durability, plan.log_level)
        async with Plain(*made) as plain, Ours(*made) as ours:
            sides: dict[str, Side] = {"plain": plain, "ours": ours}
            context["server"] = report.server_of(plain.store)
            rows: dict[str, list[Figures]] = {name: [] for name in ROWS}
            streams: dict[str, list[tuple[float, int]]] = {name: [] for name in sides}
            paced: list[tuple[float, int]] = []
            seen = {}
            for name, (side, kind) in ROWS.items():  # also the warm-up
                seen[name] = await commands(sides[side], kind, plan.watched)
            for number in range(plan.rounds):
                if time.monotonic() - started > plan.seconds:
                    break
                say(f"round {number + 1} of {plan.rounds}, load {os.getloadavg()[0]:.2f}")
                for name in random.sample(list(ROWS), len(ROWS)):
                    side, kind = ROWS[name]
                    rows[name].append(await measure(sides[side], kind, plan.load))
                for name, side_ in sides.items():
                    streams[name].append(await side_.stream(BURST))
                paced.append(await ours.stream(PACED))
            context["load_after"] = os.getloadavg()[0]
    context["seconds"] = round(time.monotonic() - started, 1)
    return report.result(context, rows, streams | {"paced": paced}, seen, plan.watched)


def main() -> None:
    """Parse the command line, measure, print."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    parser.add_argument("--durability", choices=("everysec", "power"), default="everysec")
    parser.add_argument("--log-level", choices=("info", "warning"), default="info", help="of the workers on both sides")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    plan = Plan(rounds=options.rounds, durability=options.durability, log_level=options.log_level)
    result = asyncio.run(run(plan, lambda text: None if options.json else print(text, flush=True)))
    print(json.dumps(result) if options.json else report.text(result))
    if not options.json and importlib.util.find_spec("tests.bench.enforcement"):
        importlib.import_module("tests.bench.enforcement").main()


if __name__ == "__main__":
    main()
