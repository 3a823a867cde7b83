"""``make bench``: ours beside plain Celery, interleaved, in one run of under three minutes."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from api_client.contract.settings import Settings
from tests.bench import enforcement, report
from tests.bench.measure import Figures, Load, commands, measure, together
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
#: A row that takes longer than this is stuck.
_ROW_SECONDS = 60.0


@dataclass(frozen=True)
class Plan:
    """How much is measured. The defaults take about two minutes on two cores.

    Attributes:
        watched: turns watched by MONITOR to count commands. seconds: no further round begins after so many.
    """

    rounds: int = 5
    load: Load = field(default_factory=lambda: Load(alone=80, together=150, in_flight=50))
    watched: int = 20
    durability: str = "everysec"
    log_level: str = "info"
    seconds: float = 150.0


@dataclass
class Seen:
    """What was measured: by row, by stream, by command."""

    rows: dict[str, list[Figures]] = field(default_factory=lambda: {name: [] for name in ROWS})
    streams: dict[str, list[tuple[float, int]]] = field(default_factory=lambda: {"plain": [], "ours": [], "paced": []})
    commands: dict[str, dict[str, Counter[str]]] = field(default_factory=dict)


async def run(plan: Plan, say: report.Say) -> dict[str, Any]:
    """Measure, and return everything that was seen, JSON-ready.

    Raises:
        TimeoutError: a row was stuck. RuntimeError: a turn did not end as it must.
    """
    configure_logging(Settings(log_level="warning"))  # this process: client and supervisor
    started = time.monotonic()
    where, seen = report.context(plan.durability), Seen()
    with tempfile.TemporaryDirectory(prefix="helix-bench-", ignore_cleanup_errors=True) as directory:
        made = (Path(directory), plan.durability, plan.log_level)
        async with Plain(*made) as plain, Ours(*made) as ours:
            where["server"] = report.server_of(plain.store)
            sides = {"plain": plain, "ours": ours}
            await _prepare(sides, plan, seen)
            for number in range(plan.rounds):
                if number and time.monotonic() - started > plan.seconds:
                    break
                say(f"round {number + 1} of {plan.rounds}, load {os.getloadavg()[0]:.2f}")
                await _round(sides, plan, seen)
    where |= {"load_after": os.getloadavg()[0], "seconds": time.monotonic() - started}
    return report.result(where, seen.rows, seen.streams, seen.commands, plan.watched)


async def _prepare(sides: dict[str, Side], plan: Plan, seen: Seen) -> None:
    """Fill the connection pools; then count commands, while nothing else goes on."""
    for name, (side, kind) in ROWS.items():
        async with asyncio.timeout(_ROW_SECONDS):
            await together(sides[side], kind, plan.load)
            seen.commands[name] = await commands(sides[side], kind, plan.watched)


async def _round(sides: dict[str, Side], plan: Plan, seen: Seen) -> None:
    """Every row once, in another order each time."""
    for name in random.sample(list(ROWS), len(ROWS)):
        side, kind = ROWS[name]
        async with asyncio.timeout(_ROW_SECONDS):
            seen.rows[name].append(await measure(sides[side], kind, plan.load))
    async with asyncio.timeout(_ROW_SECONDS):
        for name, side_ in sides.items():
            seen.streams[name].append(await side_.stream(BURST))
        seen.streams["paced"].append(await sides["ours"].stream(PACED))


def main() -> None:
    """Parse the command line, measure, print."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    parser.add_argument("--durability", choices=("everysec", "power"), default="everysec")
    parser.add_argument("--log-level", choices=("info", "warning"), default="info", help="of the workers on both sides")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    plan = Plan(rounds=max(1, options.rounds), durability=options.durability, log_level=options.log_level)
    found = asyncio.run(run(plan, lambda text: None if options.json else print(text, flush=True)))
    if options.json:
        print(json.dumps(found | {"enforcement": enforcement.measure()}))
        return
    print(report.text(found))
    enforcement.main()


if __name__ == "__main__":
    main()
