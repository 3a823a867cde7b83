"""Token and money usage of agent runs and of rules that ask models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from api_client.contract.counters import counter_field
from api_client.contract.frozen import checked_frozen

#: Larger amounts are treated as reporting errors.
_MOST_USED = 1e12


@checked_frozen(slots=True, kw_only=True)
class Usage:
    """The tokens and the US dollars spent by an agent run, or by a validation rule that asks a model."""

    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float = 0.0

    def __bool__(self) -> bool:
        return bool(self.tokens or self.cost_usd)

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            cost_usd=self.cost_usd + other.cost_usd,
        )

    @classmethod
    def from_report(cls, reported: Mapping[str, Any]) -> Usage:
        """Create a usage from a runner's report. Implausible amounts become zero."""
        if not reported:
            return NOTHING_USED
        return cls(
            input_tokens=int(_plausible_amount(reported.get("input_tokens"))),
            output_tokens=int(_plausible_amount(reported.get("output_tokens"))),
            cost_usd=_plausible_amount(reported.get("cost_usd")),
        )

    @property
    def tokens(self) -> int:
        """Return the sum of input and output tokens."""
        return self.input_tokens + self.output_tokens

    @property
    def microdollars(self) -> int:
        """Return the cost in millionths of a US dollar."""
        return int(self.cost_usd * 1e6)

    def to_event_data(self) -> dict[str, Any] | None:
        """Return the usage as JSON-ready data for an event, or None if nothing was used."""
        if not self:
            return None
        return {"input_tokens": self.input_tokens, "output_tokens": self.output_tokens, "cost_usd": self.cost_usd}

    def count_usage(self, model: str) -> dict[str, int]:
        """Return the metrics counters for the tokens and cost of a run with the given model."""
        amounts = {
            "tokens.input": self.input_tokens,
            "tokens.output": self.output_tokens,
            "cost.all": self.microdollars,
        }
        return {counter_field(name, model): amount for name, amount in amounts.items() if amount}

    def count_waste(self, model: str) -> dict[str, int]:
        """Return the metrics counters for the tokens and cost of a rejected answer."""
        amounts = {"tokens.failed": self.tokens, "cost.failed": self.microdollars}
        return {counter_field(name, model): amount for name, amount in amounts.items() if amount}


NOTHING_USED = Usage()


def _plausible_amount(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < _MOST_USED:
        return 0.0
    return float(value)
