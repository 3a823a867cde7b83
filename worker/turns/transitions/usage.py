"""The use of an agent run: tokens and money, as the agent reported them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from api_client.contract.counters import counter, model_of
from api_client.contract.frozen import frozen
from api_client.contract.turn import Turn
from api_client.turns.record.moves import Move, attempt_facts, progress
from worker.enforcement.validators.services import JudgingCost

#: Whatever an agent reports beyond this it did not use.
_MOST_USED = 1e12


@frozen(slots=True, kw_only=True)
class Usage:
    """Tokens, and money in US dollars."""

    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float = 0.0

    @classmethod
    def of(cls, reported: Mapping[str, Any]) -> Usage:
        """Return what a runner reported, as far as it makes sense."""
        if not reported:
            return NOTHING_USED
        return cls(
            input_tokens=int(_amount(reported.get("input_tokens"))),
            output_tokens=int(_amount(reported.get("output_tokens"))),
            cost_usd=_amount(reported.get("cost_usd")),
        )

    @classmethod
    def spent(cls, spent: JudgingCost) -> Usage:
        """Return what rules used of models while they judged."""
        return cls(input_tokens=spent.input_tokens, output_tokens=spent.output_tokens, cost_usd=spent.cost_usd)

    @property
    def as_judging(self) -> JudgingCost:
        """Return the cost of a model that judged, and did not answer."""
        return JudgingCost(input_tokens=self.input_tokens, output_tokens=self.output_tokens, cost_usd=self.cost_usd)

    @property
    def tokens(self) -> int:
        """Tokens in and out."""
        return self.input_tokens + self.output_tokens

    @property
    def microdollars(self) -> int:
        """Millionths of a US dollar."""
        return int(self.cost_usd * 1e6)

    def reported(self) -> dict[str, Any] | None:
        """The event's data; nothing when nothing was reported."""
        if not self.tokens and not self.cost_usd:
            return None
        return {"input_tokens": self.input_tokens, "output_tokens": self.output_tokens, "cost_usd": self.cost_usd}

    def counted(self, model: str) -> dict[str, int]:
        """The counters of a run that used this."""
        amounts = {
            "tokens.input": self.input_tokens,
            "tokens.output": self.output_tokens,
            "cost.all": self.microdollars,
        }
        return {counter(name, model): amount for name, amount in amounts.items() if amount}

    def wasted(self, model: str) -> dict[str, int]:
        """The counters of a run that used this for an answer that was not accepted."""
        amounts = {"tokens.failed": self.tokens, "cost.failed": self.microdollars}
        return {counter(name, model): amount for name, amount in amounts.items() if amount}


NOTHING_USED = Usage()
_NO_MORE = attempt_facts()


def with_judging(turn: Turn, move: Move, spent: JudgingCost) -> Move:
    """The move that also charges the turn what its rules used of models: its limits cover that too."""
    if not spent:
        return move
    used = Usage.spent(spent)
    charged = progress(tokens_used=turn.tokens_used + used.tokens, cost_used=turn.cost_used + used.microdollars)
    counters = dict(move.counters)
    for name, amount in used.counted(model_of(turn)).items():
        counters[name] = counters.get(name, 0) + amount
    return replace(move, fields=move.fields | charged, counters=counters)


def _amount(value: object) -> float:
    """A number an agent reported, if it is one that makes sense."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < _MOST_USED:
        return 0.0
    return float(value)
