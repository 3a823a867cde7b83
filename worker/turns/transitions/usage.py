"""Charges the usage of model-based validation to a turn."""

from __future__ import annotations

from dataclasses import replace

from api_client.contract.counters import model_label
from api_client.contract.turn import Turn
from api_client.contract.usage import Usage
from api_client.turns.record.transition import Transition, progress


def charge_validation(turn: Turn, transition: Transition, used: Usage) -> Transition:
    """Return the transition with the cost of model-based validation added to the turn's usage and counters."""
    if not used:
        return transition
    charged = progress(tokens_used=turn.tokens_used + used.tokens, cost_used=turn.cost_used + used.microdollars)
    counters = dict(transition.counters)
    for name, amount in used.count_usage(model_label(turn)).items():
        counters[name] = counters.get(name, 0) + amount
    return replace(transition, fields=transition.fields | charged, counters=counters)
