"""The settings of budgets: of a turn, and of a day."""

from __future__ import annotations

from dataclasses import dataclass

from api_client.contract.limits import MAX_COST_USD, MAX_TOKENS
from api_client.contract.settings.declaration import SettingsGroup, declare_setting
from api_client.contract.settings.setting_values import integer_parser, names, number_parser


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
    """Limits of what turns may cost."""

    token_budget: int = declare_setting(
        0, integer_parser(0, MAX_TOKENS), "Tokens all attempts of a turn may use together; 0: no limit.", per_model=True
    )
    cost_budget_usd: float = declare_setting(
        0.0, number_parser(0, MAX_COST_USD), "The same for money, in US dollars; 0: no limit.", per_model=True
    )
    budgets: dict[str, float] = declare_setting(
        dict,
        parse_day_budgets,
        "Dollars a day (UTC): all=200,owner:*=5,key:webui=50,model:opus=100; a spent one refuses turns and runs (429).",
    )
