"""Statistics of a period, in total and in equal sections, from one read of the counters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from api_client.figures.statistics import (
    RuleRow,
    Slice,
    Stats,
    TurnRow,
)

#: Time spans: name -> (seconds, size of the sections).
SPANS = {"1h": (3600, "minute"), "24h": (86_400, "hour"), "7d": (7 * 86_400, "hour"), "30d": (30 * 86_400, "day")}
_DAY, _WEEK_DAYS = 86_400, 7


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Statistics of a period, in total and in sections, with an earlier period for comparison.

    ``whole`` and ``pieces`` are by validator, oldest first; ``codes`` by issue code, ``models`` by model,
    ``rules_by_model`` by (rule, model). ``earlier`` is the same period ``against`` days earlier.
    """

    span: str
    pieces: tuple[Slice, ...]
    whole: Stats
    codes: tuple[RuleRow, ...]
    models: tuple[TurnRow, ...]
    rules_by_model: Mapping[tuple[str, str], RuleRow]
    earlier: Stats
    against: int

    @property
    def rules(self) -> tuple[RuleRow, ...]:
        """Return the statistics of each validator, most rejections first."""
        return tuple(row for row in self.whole.rows if isinstance(row, RuleRow))

    def earlier_rate(self, rule: str) -> float | None:
        """Return a validator's rejection rate in the earlier period, or None if it checked nothing then."""
        return next((row.rate for row in self.earlier.rows if isinstance(row, RuleRow) and row.name == rule), None)

    @property
    def outcomes(self) -> dict[str, int]:
        """Return the number of finished turns for each outcome that occurred, successes first."""
        return {outcome: count for outcome, count in self.whole.outcomes.items() if count}

    def to_dict(self) -> dict[str, Any]:
        return {
            **self.whole.to_dict(),
            "span": self.span,
            "codes": [row.to_dict() for row in self.codes],
            "models": [row.to_dict() for row in self.models],
            "earlier": {**self.earlier.to_dict(), "against_days": self.against},
        }
