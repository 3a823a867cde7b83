"""Bar charts as rectangles whose coordinates are percentages of the picture."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from api_client.figures.statistics import RuleRow, Slice

#: Layers of the outcome chart, bottom first: tone (``rendering.tone``) -> outcomes.
LAYERS = {
    "good": ("passed",),
    "again": ("passed_after_retry",),
    "repaired": ("passed_by_fallback", "passed_by_human"),
    "bad": ("failed", "incomplete", "refused", "error", "expired", "dead"),
    "quiet": ("cancelled",),
}
_TONE_WORDS = {
    "good": "passed at once",
    "again": "passed after retry",
    "repaired": "repaired by code, or accepted by a person",
    "bad": "not passed",
    "quiet": "cancelled",
}
_BAR_SHARE = 0.78


@dataclass(frozen=True, slots=True)
class Rectangle:
    """A rectangle of a chart, with its position and size in CSS percentages. ``layer`` names the colour."""

    x: str
    y: str
    width: str
    height: str
    layer: str = ""
    title: str = ""


@dataclass(frozen=True, slots=True)
class BarChart:
    """The bars of a chart over time. ``max_value`` is the value of a full-height bar."""

    rectangles: tuple[Rectangle, ...]
    max_value: float


def chart_outcomes(pieces: Sequence[Slice]) -> BarChart:
    """Build a chart of the finished turns in each time slice, stacked by outcome."""
    counts = [
        {tone: sum(piece.stats.outcomes.get(o, 0) for o in outcomes) for tone, outcomes in LAYERS.items()}
        for piece in pieces
    ]
    top = _round_up(max((sum(count.values()) for count in counts), default=0))
    boxes = []
    for place, count in enumerate(counts):
        below = 0
        for tone, number in count.items():
            if number:
                boxes.append(
                    _make_rectangle(
                        place, len(pieces), below / top, number / top, tone, f"{number} {_TONE_WORDS[tone]}"
                    )
                )
            below += number
    return BarChart(tuple(boxes), top)


def chart_cost(pieces: Sequence[Slice]) -> BarChart:
    """Build a chart of the cost of agent runs in each time slice, separately for accepted and other answers."""
    totals = [piece.stats.total for piece in pieces]
    top = _round_up(max((total.cost_usd for total in totals), default=0.0), least=0.0001)
    boxes = []
    for place, total in enumerate(totals):
        accepted = max(0.0, total.cost_usd - total.failed_cost_usd)
        for tone, below, amount in (("good", 0.0, accepted), ("bad", accepted, total.failed_cost_usd)):
            if amount > 0:
                words = "for accepted answers" if tone == "good" else "for answers that were not accepted"
                boxes.append(
                    _make_rectangle(place, len(pieces), below / top, amount / top, tone, f"${amount:.4f} {words}")
                )
    return BarChart(tuple(boxes), top)


def chart_rejection_rate(pieces: Sequence[Slice], validator: str) -> BarChart:
    """Build a chart of a validator's rejection rate in each time slice. Full height means 100 %."""
    boxes = []
    for place, piece in enumerate(pieces):
        row = next((r for r in piece.stats.rows if isinstance(r, RuleRow) and r.name == validator), None)
        if row and row.validated:
            height = max(min(1.0, row.rejected / row.validated), 0.04)
            tone = "rate" if row.rejected else "none"
            boxes.append(_make_rectangle(place, len(pieces), 0, height, tone, f"{row.rejected} of {row.validated}"))
    return BarChart(tuple(boxes), 1.0)


def _make_rectangle(place: int, places: int, bottom: float, height: float, layer: str, title: str) -> Rectangle:
    width = 100 / places
    return Rectangle(
        x=f"{(place + (1 - _BAR_SHARE) / 2) * width:.3f}%",
        y=f"{100 * (1 - bottom - height):.2f}%",
        width=f"{width * _BAR_SHARE:.3f}%",
        height=f"{100 * height:.2f}%",
        layer=layer,
        title=title,
    )


def _round_up(value: float, least: float = 4) -> float:
    if value <= least:
        return least
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 4, 8, 10) if step * power >= value)
