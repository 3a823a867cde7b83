"""The settings of daily budgets."""

from __future__ import annotations

from dataclasses import dataclass

from api_client.contract.settings.declaration import SettingsGroup, declare_setting
from api_client.contract.settings.setting_values import names, number_parser


def parse_day_budgets(value: str) -> dict[str, float]:
    """Parse daily budgets in US dollars, such as ``all=200,owner:*=5,key:NAME=50,model:NAME=100``."""
    budgets = {}
    for item in names(value):
        scope, given, dollars = (part.strip() for part in item.rpartition("="))
        kind, _, name = scope.partition(":")
        if not given or (scope != "all" and (kind not in {"owner", "key", "model"} or not name)):
            raise ValueError("must look like all=200,owner:*=5,key:NAME=50,model:NAME=100: dollars a day")
        budgets[scope] = number_parser(0, 10**9)(dollars)
    return budgets


@dataclass(frozen=True, kw_only=True)
class BudgetSettings(SettingsGroup):
    """Settings of budgets, which limit the cost of turns per day."""

    budgets: dict[str, float] = declare_setting(
        dict,
        parse_day_budgets,
        "Dollars a day (UTC): all=200,owner:*=5,key:webui=50,model:opus=100; a spent one refuses turns and runs (429).",
    )
