"""The constants of circuit breakers."""

from __future__ import annotations

from dataclasses import dataclass

from api_client.contract.settings.declaration import SettingsGroup, declare_constant
from api_client.contract.settings.setting_values import integer_parser, number_parser


@dataclass(frozen=True, kw_only=True)
class BreakerSettings(SettingsGroup):
    """The conditions under which turns wait because a model's service fails."""

    breaker_errors: int = declare_constant(
        10,
        integer_parser(0, 10**6),
        "Errors of a model's service in a row (5xx, network) after which its turns wait.",
    )
    breaker_seconds: float = declare_constant(
        60.0, number_parser(0.1, 86_400), "An open breaker lets one turn try after this long; doubles up to 10 minutes."
    )
