"""Plots of a result, as SVG: ``python -m tests.bench.turns.plots SEEN.json FOLDER``."""

from __future__ import annotations

import json
import sys
from html import escape
from pathlib import Path
from typing import Any

_WIDTH, _LEFT, _BAR, _GAP, _TOP = 760, 220, 22, 12, 54
_COLOURS = ("#2563eb", "#93c5fd", "#f59e0b")
#: file name -> title, and the figures whose bars stand one after the other.
PLOTS = {
    "turns-per-second": ("Turns a second, 50 in flight, rejected once", {"rejected.turns_per_s": "turns/s"}),
    "latency": ("Milliseconds of one turn alone, rejected once (median)", {"rejected.p50_ms": "ms"}),
    "processor": (
        "Processor milliseconds of a turn that is rejected once",
        {"rejected.worker_cpu_ms": "worker", "rejected.client_cpu_ms": "client", "rejected.store_cpu_ms": "store"},
    ),
}


def plot(found: dict[str, Any], title: str, figures: dict[str, str]) -> str:
    """Horizontal bars, a row each, with the value behind it; a line shows lowest and highest of a single figure."""
    rows = {row: [seen.get(name, []) for name in figures] for row, seen in found["rows"].items()}
    rows = {row: spreads for row, spreads in rows.items() if all(spreads)}
    most = max((sum(spread[0] for spread in spreads) for spreads in rows.values()), default=1.0)
    if len(figures) == 1:
        most = max((spreads[0][2] for spreads in rows.values()), default=most)
    scale = (_WIDTH - _LEFT - 90) / (most or 1.0)
    height = _TOP + len(rows) * (_BAR + _GAP) + 34
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" font-family="sans-serif" '
        'font-size="13">',
        f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="16" y="26" font-size="16" font-weight="bold">{escape(title)}</text>',
    ]
    for number, (row, spreads) in enumerate(rows.items()):
        parts += _bars(found["labels"][row], spreads, _TOP + number * (_BAR + _GAP), scale)
    if len(figures) > 1:
        for number, label in enumerate(figures.values()):
            x = _LEFT + number * 90
            parts.append(f'<rect x="{x}" y="36" width="10" height="10" fill="{_COLOURS[number]}"/>')
            parts.append(f'<text x="{x + 15}" y="45">{escape(label)}</text>')
    foot = f"{found['date']} · {found['cores']} cores · {found['rounds']} rounds · durability {found['durability']}"
    parts += [f'<text x="16" y="{height - 12}" fill="#6b7280" font-size="11">{escape(foot)}</text>', "</svg>"]
    return "\n".join(parts) + "\n"


def _bars(label: str, spreads: list[list[float]], y: float, scale: float) -> list[str]:
    """The bars of one row."""
    parts = [f'<text x="{_LEFT - 8}" y="{y + 16}" text-anchor="end">{escape(label)}</text>']
    x: float = _LEFT
    for number, (middle, _, _) in enumerate(spreads):
        width = middle * scale
        parts.append(f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{_BAR}" fill="{_COLOURS[number]}"/>')
        x += width
    total = sum(spread[0] for spread in spreads)
    if len(spreads) == 1:
        low, high = (_LEFT + value * scale for value in spreads[0][1:])
        middle = y + _BAR / 2
        parts.append(f'<line x1="{low:.1f}" x2="{high:.1f}" y1="{middle}" y2="{middle}" stroke="#111827"/>')
        x = max(x, high)
    shown = f"{total:,.0f}" if total >= 100 else f"{total:.3g}"
    return [*parts, f'<text x="{x + 6:.1f}" y="{y + 16}">{shown}</text>']


def write(found: dict[str, Any], folder: Path) -> list[Path]:
    """Write every plot into a folder; returns the files."""
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for name, (title, figures) in PLOTS.items():
        files.append(folder / f"bench-{name}.svg")
        files[-1].write_text(plot(found, title, figures), encoding="utf-8")
    return files


if __name__ == "__main__":
    for path in write(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")), Path(sys.argv[2])):
        print(path)
