"""How much an installation carries and what it costs, as plots: ``python -m tests.lab.bench.plots [--price 0.04]``.

Draws ``docs/images/capacity-*.svg`` from ``plots.json``: figures that were measured, each with the command that
prints it. A core's turns and a store's are a model of one division each; nothing else is estimated.
"""

import argparse
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_MEASURED = Path(__file__).with_suffix(".json")
IMAGES = Path(__file__).parents[3] / "docs" / "images"
_WIDTH, _HEIGHT, _LEFT, _TOP, _RIGHT, _BOTTOM = 760, 340, 84, 48, 190, 52
_COLOURS = ("#2563eb", "#16a34a", "#d97706", "#6b7280", "#dc2626")
_MS_AN_HOUR = 3_600_000


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a plot: its name and its points, both coordinates above 0."""

    name: str
    points: Sequence[tuple[float, float]]


def plot(title: str, across: str, up: str, lines: Sequence[Line]) -> str:
    """The lines as SVG, both axes logarithmic, a figure at each decade. Pure."""
    xs, ys = ([point[axis] for line in lines for point in line.points] for axis in (0, 1))
    (left, right), (low, high) = _span(xs), _span(ys)

    def x(value: float) -> float:
        return _LEFT + (math.log10(value) - left) / (right - left) * (_WIDTH - _LEFT - _RIGHT)

    def y(value: float) -> float:
        return _HEIGHT - _BOTTOM - (math.log10(value) - low) / (high - low) * (_HEIGHT - _TOP - _BOTTOM)

    svg = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" '
        'font-size="12">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#ffffff"/>',
        f'<text x="16" y="26" font-size="16" font-weight="bold">{title}</text>',
        f'<text x="{_LEFT}" y="{_HEIGHT - 12}" fill="#6b7280">{across}</text>',
        f'<text x="{_LEFT}" y="{_TOP - 6}" fill="#6b7280">{up}</text>',
    ]
    for power in range(int(left), int(right) + 1):
        svg.append(_rule(x(10**power), _TOP, x(10**power), _HEIGHT - _BOTTOM))
        svg.append(f'<text x="{x(10**power):.1f}" y="{_HEIGHT - 34}" text-anchor="middle">{_shown(power)}</text>')
    for power in range(int(low), int(high) + 1):
        svg.append(_rule(_LEFT, y(10**power), _WIDTH - _RIGHT, y(10**power)))
        svg.append(f'<text x="{_LEFT - 8}" y="{y(10**power) + 4:.1f}" text-anchor="end">{_shown(power)}</text>')
    for number, (line, colour) in enumerate(zip(lines, _COLOURS, strict=False)):
        way = " ".join(f"{x(across):.1f},{y(up):.1f}" for across, up in line.points)
        svg.append(f'<polyline points="{way}" fill="none" stroke="{colour}" stroke-width="2"/>')
        svg.append(f'<text x="{_WIDTH - _RIGHT + 16}" y="{_TOP + 60 + 20 * number}" fill="{colour}">{line.name}</text>')
    return "\n".join([*svg, "</svg>", ""])


def _shown(power: int) -> str:
    return f"{10**power:,}" if power >= 0 else f"{10**power:g}"


def _span(values: Iterable[float]) -> tuple[int, int]:
    """The decades around values, two at least."""
    powers = [math.log10(value) for value in values]
    low, high = math.floor(min(powers)), math.ceil(max(powers))
    return low, max(high, low + 1)


def _rule(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="#e5e7eb"/>'


def turns(measured: dict[str, Any]) -> str:
    """Turns an hour by the cores of all workers, up to what one store carries."""
    most = _MS_AN_HOUR / measured["store_ms"]
    lines = []
    for name, worker_ms in measured["worker_ms"].items():
        full = most * worker_ms / _MS_AN_HOUR
        cores = [1.0, min(full, 1000.0), 1000.0]
        lines.append(Line(name, [(each, min(most, each * _MS_AN_HOUR / worker_ms)) for each in cores]))
    return plot("Turns an hour, until one store is full", "cores of all workers", "turns an hour", lines)


def memory(measured: dict[str, Any]) -> str:
    """Memory of the store by the number of turns in it, in GB."""
    kept = (1e4, 1e7)
    lines = [Line(name, [(each, each * size / 1e6) for each in kept]) for name, size in measured["kb"].items()]
    return plot("Memory of the store", "turns in the store", "GB", lines)


def cost(measured: dict[str, Any], price: float) -> list[str]:
    """A Markdown table: what a thousand turns cost in processor time, by kind, at a price of a core's hour."""
    rows = ["| 1,000 turns | core hours | cost |", "|---|---|---|"]
    for name, worker_ms in measured["worker_ms"].items():
        hours = 1000 * (worker_ms + measured["store_ms"]) / _MS_AN_HOUR
        rows.append(f"| {name} | {hours:.4f} | {price * hours:.5f} |")
    return rows


def drawn(measured: dict[str, Any]) -> dict[str, str]:
    """Each plot, by the name of its file."""
    return {"capacity-turns.svg": turns(measured), "capacity-memory.svg": memory(measured)}


def measured() -> dict[str, Any]:
    """The figures, as they were measured."""
    found: dict[str, Any] = json.loads(_MEASURED.read_text())
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.lab.bench.plots", description=__doc__)
    parser.add_argument("--price", type=float, default=0.04, help="of a core for an hour, in any currency")
    asked = parser.parse_args()
    for name, svg in drawn(measured()).items():
        (IMAGES / name).write_text(svg)
    print("\n".join(cost(measured(), asked.price)))


if __name__ == "__main__":
    main()
