"""The models that the Claude CLI may request, and their prices (``prices.toml``)."""

from __future__ import annotations

import tomllib
from pathlib import Path

from api_client.contract.settings import Settings
from worker.runners.pricing import Prices

#: Names by which the CLI chooses a model itself.
_ANY = frozenset({"", "best", "default", "opusplan"})
_FAMILIES = ("opus", "sonnet", "haiku", "fable", "mythos")
#: The CLI's model for small tasks.
_SMALL = "*haiku*"
_LISTED: dict[str, list[float]] = tomllib.loads(Path(__file__).with_name("prices.toml").read_text("utf-8"))
_PRICES = {name: dict(zip(("input", "output", "cache_read"), prices, strict=True)) for name, prices in _LISTED.items()}
_DEAREST = max(_PRICES.values(), key=lambda prices: prices["output"])


def allowed_models(option: str, settings: Settings) -> tuple[str, ...]:
    """Return patterns for the models that the CLI may request if it runs ``option``, or none for any model."""
    name = option.lower().removesuffix("[1m]")
    if name in _ANY and not settings.proxy_models:
        return ()
    family = next((f"*{each}*" for each in _FAMILIES if each in name and name not in _ANY), name)
    return (*filter(None, (family,)), _SMALL, *settings.proxy_models)


def model_prices(own: Prices) -> Prices:
    """Return a model's configured prices, together with Anthropic's prices for more expensive models."""
    listed = {n: each for n, each in _PRICES.items() if not own or each["input"] > own.get("input", 0.0)}
    return {**listed, **(own or _DEAREST)}
