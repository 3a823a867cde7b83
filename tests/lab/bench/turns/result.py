"""From the figures of each round to medians, spreads and ratios."""

import os
import platform
import statistics
import time
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from tests.lab.bench.load import work
from tests.lab.bench.turns.plan import Plan
from tests.lab.bench.turns.rows import CHAIN, ROWS

#: Median, lowest, highest.
Spread = list[float]
#: What is compared: figure of a variant, and the row ours is divided by.
RATIOS = (
    ("rejected.turns_per_s", CHAIN),
    ("rejected.turns_per_s", "taskiq"),
    ("rejected.turns_per_s", "dramatiq"),
    *(("rejected.turns_per_s", name) for name, row in ROWS.items() if row.durable),
    ("rejected.p50_ms", "taskiq"),
    ("rejected.worker_cpu_ms", CHAIN),
    ("first.turns_per_s", CHAIN),
    ("first.turns_per_s", "taskiq"),
    ("first.p50_ms", "taskiq"),
    ("first.worker_cpu_ms", CHAIN),
    ("stream.pieces_per_s", CHAIN),
)


def context(plan: Plan) -> dict[str, Any]:
    """Where and how it is measured."""
    return {
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "cores": os.cpu_count(),
        "load_before": os.getloadavg()[0],
        "python": platform.python_version(),
        "versions": {name: version(name) for name in ("helix-turns", "celery", "kombu", "redis", "hiredis")},
        "durability": plan.durability,
        "in_flight": plan.in_flight,
        "pieces": work.PIECES,
    }


def result(where: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    """What ``measure`` found, with medians, spreads and the ratios of each round; JSON-ready."""
    rows = found["rows"]
    ratios = [
        {"figure": figure, "row": row, "under": under, "ratio": spread(of_rounds(rows[row], rows[under], figure))}
        for figure, under in RATIOS
        for row in rows
        if ROWS[row].ours and under in rows and figure in rows[row]
    ]
    return {
        **where,
        "store": found["store"],
        "load_after": os.getloadavg()[0],
        "rounds": max(len(values) for figures in rows.values() for values in figures.values()),
        "labels": {row: ROWS[row].label for row in rows},
        "folders": {row: ROWS[row].folder for row in rows},
        "rows": {row: {figure: spread(values) for figure, values in figures.items()} for row, figures in rows.items()},
        "ratios": ratios,
        "commands": found["commands"],
        "each_round": rows,
    }


def of_rounds(ours: dict[str, list[float]], under: dict[str, list[float]], figure: str) -> list[float]:
    """Ours divided by another row, round by round: what else the machine did then struck both.

    A round in which the other row used no whole tick (10 ms) of processor is left out.
    """
    return [a / b for a, b in zip(ours[figure], under[figure], strict=True) if b > 0]


def spread(values: Sequence[float]) -> Spread:
    """Median, lowest and highest; empty when nothing could be measured."""
    return [statistics.median(values), min(values), max(values)] if values else []
