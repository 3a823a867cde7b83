"""The budgets of the day, as a command, ``GET /v1/budgets`` and a page."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from api_client.budgets.budget import EACH, BudgetSpending
from api_client.client import TurnsClient
from api_client.contract.clock_time import format_clock_time
from api_client.resources.resource import Column, Listed, Resource, ResourcePage
from api_client.setting_checks.budgets import find_unmatched_budgets


def _dollars(amount: float) -> str:
    return f"{amount:.{2 if amount == round(amount, 2) else 4}f}"


async def _spent(client: TurnsClient, _most: int) -> Listed[BudgetSpending]:
    nobody = find_unmatched_budgets(client.settings)
    return [replace(each, matches=each.budget not in nobody) for each in await client.spending.read_today()], {}


BUDGETS = Resource[BudgetSpending](
    read=_spent,
    none="HELIX_BUDGETS has no budget, or only budgets for each one, of which nothing was spent today",
    caption=lambda _: "Today (UTC)",
    columns=(
        Column(
            "budget", lambda each, context: context.named(each.scope if EACH in each.budget else each.budget), "wide"
        ),
        Column("spent $", lambda each, _: f"{each.charged_usd:.4f}", "num"),
        Column("of $", lambda each, _: _dollars(each.limit_usd), "num"),
        Column("share", lambda each, _: f"{each.share:.0%}", "num"),
        Column("state", lambda each, _: each.state),
        Column("set aside $", lambda each, _: f"{each.set_aside_usd:.4f}", "num"),
        Column("resets", lambda each, context: format_clock_time(each.resets_at, context.now), "quiet"),
    ),
    api="/v1/budgets",
    called="list_budgets",
    about="The budgets, the most used first.",
    shown=lambda each, viewer: each if viewer.metrics or each.scope in viewer.scopes else None,
)


async def _weeks_spending(client: TurnsClient) -> dict[str, Any]:
    stats = {by: await client.figures.read_stats(7 * 86_400.0, by) for by in ("model", "key", "owner")}
    return {"spent": [(by, [row for row in each.rows if row.turns][:20]) for by, each in stats.items()]}  # type: ignore[union-attr]


RESOURCES = (BUDGETS,)
PAGES = (
    ResourcePage(
        address="/budgets",
        title="Budgets",
        position=5,
        resources=(BUDGETS,),
        template="budgets.html",
        more=_weeks_spending,
    ),
)
