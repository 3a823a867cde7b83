"""The monitor that watches daily budgets."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from api_client.budgets.budget import DAY_SECONDS, BudgetSpending, highest_shares
from api_client.budgets.budget_admission import BudgetLedger
from api_client.workers.monitor import Gauge, Monitor, Trouble
from api_client.workers.reason import Reason, Wait


class BudgetMonitor(Monitor):
    """Watches daily budgets and warns operators about budgets that are nearly or fully spent."""

    name, part = "budgets", "spending"

    def __init__(self, ledger: BudgetLedger) -> None:
        self._ledger = ledger

    async def read_gauges(self) -> Sequence[Gauge]:
        """Return a metric with the spent share of each configured budget."""
        meaning = (
            "Part of today's budget that is spent, the highest of all it is measured for; 1: new turns are refused."
        )
        return [Gauge("helix_budget_spent_ratio", meaning, highest_shares(await self._ledger.read_today()), "budget")]

    async def find_troubles(self) -> Sequence[Trouble]:
        """Return a warning for each budget that is nearly or fully spent, at most once a day per budget."""
        names, now = ("scope", "spent_usd", "limit_usd", "resets_at"), time.time()
        return [
            Trouble(
                kind=f"budget.{each.state}",
                subject=f"{each.scope} {int(each.resets_at) - DAY_SECONDS}",
                at=now,
                page="/budgets",
                data={name: getattr(each, name) for name in names},
            )
            for each in await self._ledger.read_today()
            if each.state != "ok"
        ]

    async def find_waits(self, now: float) -> Sequence[Wait]:
        """Return the reason why new turns wait until tomorrow, if any budget is fully spent."""
        return find_budget_waits(await self._ledger.read_today(), now)


def find_budget_waits(budgets: Iterable[BudgetSpending], now: float) -> list[Wait]:
    """Return one wait reason that names all fully spent budgets, or an empty list if there are none."""
    if not (spent := [each for each in budgets if each.state == "spent"]):
        return []
    scopes = ", ".join(each.scope for each in spent[:5]) + (", ..." if len(spent) > 5 else "")
    return [Wait(reason=Reason("budget"), at=now, subject=scopes, until=spent[0].resets_at)]
