"""Computes the cost of model calls from the tokens that the model proxy counted.

Prices are US dollars per million tokens: ``input``, ``output``, ``cache_read`` and ``cache_write``. Nested tables give
prices for other models by name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

Prices = Mapping[str, Any]

#: Defaults that are never too low: a cached token costs as much as an input token; writing it costs this factor more,
#: and keeping it for an hour the second factor.
_WRITE, _HOUR = 1.25, 1.6


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """The number of tokens that a provider counted for model calls.

    Attributes:
        input_tokens: the whole input, including cached tokens.
        cache_read_tokens, cache_write_tokens: input tokens read from and written to the cache.
        cache_hour_tokens: written tokens that are kept for an hour.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    cache_hour_tokens: int = 0

    def __add__(self, other: Tokens) -> Tokens:
        return Tokens(**{name: getattr(self, name) + getattr(other, name) for name in TOKENS})

    def compute_cost(self, prices: Prices) -> float:
        """Compute the cost of these tokens in US dollars."""
        price = {name: float(prices.get(name, 0.0)) for name in ("input", "output")}
        read = float(prices.get("cache_read", price["input"]))
        write = float(prices.get("cache_write", _WRITE * price["input"]))
        plain = max(0, self.input_tokens - self.cache_read_tokens - self.cache_write_tokens)
        written = self.cache_write_tokens + (_HOUR - 1) * self.cache_hour_tokens
        cost = plain * price["input"] + self.cache_read_tokens * read + written * write
        return (cost + self.output_tokens * price["output"]) / 1e6


TOKENS = tuple(field.name for field in fields(Tokens))


def matches_name(name: str, pattern: str) -> bool:
    """Return True if a name matches a pattern, in which ``*`` matches any text."""
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), name, re.DOTALL) is not None


def find_prices(model: str, prices: Prices) -> Prices:
    """Return the prices of a model: those of the most specific matching name, or the general prices."""
    fitting = [name for name, each in prices.items() if isinstance(each, Mapping) and matches_name(model, name)]
    return prices[max(fitting, key=lambda name: len(name.replace("*", "")))] if fitting else prices


def compute_usage(said: Mapping[str, Any], counted: Mapping[str, Tokens], prices: Prices) -> dict[str, Any]:
    """Return the token usage of a run together with its cost in US dollars.

    ``counted`` are tokens per model from the model proxy. Without them, the usage ``said`` by the agent counts.
    """
    total = sum(counted.values(), Tokens())
    if not total.input_tokens and not total.output_tokens:
        counted, total = {"": _tokens_of(said)}, _tokens_of(said)
        prices = {} if said.get("cost_usd") or not said else prices
    usage = {name: amount for name, amount in said.items() if name not in TOKENS}
    usage |= {name: amount for name in TOKENS if (amount := getattr(total, name))}
    if prices:
        usage["cost_usd"] = sum(tokens.compute_cost(find_prices(model, prices)) for model, tokens in counted.items())
    return usage


def _tokens_of(said: Mapping[str, Any]) -> Tokens:
    return Tokens(**{name: amount for name in TOKENS if isinstance(amount := said.get(name), int) and amount > 0})


def sum_tokens(calls: Iterable[tuple[str, Tokens]], before: Mapping[str, Tokens]) -> dict[str, Tokens]:
    """Add the tokens of model calls to ``before`` and return the totals by model."""
    found = dict(before)
    for model, tokens in calls:
        found[model] = found.get(model, Tokens()) + tokens
    return found
