"""The constants of circuit breakers."""

from __future__ import annotations

from dataclasses import dataclass

from api_client.contract.settings.declaration import SettingsGroup, declare_constant


@dataclass(frozen=True, kw_only=True)
class BreakerSettings(SettingsGroup):
    """Constants of circuit breakers, which hold turns back while a model's service fails."""

    breaker_errors: int = declare_constant(
        10, "Errors of a model's service in a row (5xx, network) after which its turns wait."
    )
    breaker_seconds: float = declare_constant(
        60.0, "An open breaker lets one turn try after this long; doubles up to 10 minutes."
    )
