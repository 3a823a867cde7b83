"""The figures of a span of time, whole and in equal pieces, from one reading of the counters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from api_client.figures import RuleRow, Slice, Stats, TurnRow

#: Spans that can be looked at: name -> (seconds, size of the pieces).
SPANS = {"1h": (3600, "minute"), "24h": (86_400, "hour"), "7d": (7 * 86_400, "hour"), "30d": (30 * 86_400, "day")}
_DAY, _WEEK_DAYS = 86_400, 7


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """The figures of a span (a key of ``SPANS``).

    Attributes:
        pieces: the span in equal pieces, by validator, oldest first; the last is the present one.
        whole: all of them together, by validator. codes, models: the same, broken down otherwise; the model whose
            failed attempts cost most first. rules_by_model: by (rule, model).
        earlier: as ``whole``, of the same time ``against`` days earlier.
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
        """The validators that judged anything, those that rejected most first."""
        return tuple(row for row in self.whole.rows if isinstance(row, RuleRow))

    def earlier_rate(self, rule: str) -> float | None:
        """Return what share of answers this validator rejected earlier; None when it judged none."""
        return next((row.rate for row in self.earlier.rows if isinstance(row, RuleRow) and row.name == rule), None)

    @property
    def outcomes(self) -> dict[str, int]:
        """Finished turns by outcome, the successful first; without those that did not occur."""
        return {outcome: count for outcome, count in self.whole.outcomes.items() if count}

    def to_dict(self) -> dict[str, Any]:
        """The figures as a JSON-ready mapping."""
        return {
            **self.whole.to_dict(),
            "span": self.span,
            "codes": [row.to_dict() for row in self.codes],
            "models": [row.to_dict() for row in self.models],
            "earlier": {**self.earlier.to_dict(), "against_days": self.against},
        }
