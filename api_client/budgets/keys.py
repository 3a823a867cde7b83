"""The Redis keys of budgets."""

from __future__ import annotations

from api_client.contract.keys import KeyNames, named


class BudgetKeys(KeyNames):
    """The key names of an installation's budgets."""

    #: Redis hash: reservations of turns, by turn id (JSON).
    reservations = named("spending:reserved")
    #: Redis hash: the cost of each model's dearest recent run, in millionths of a dollar.
    prices = named("spending:prices")

    def spending(self, day: int) -> str:
        """Return the key of a day's spending by scope, a Redis hash."""
        return self.named(f"spending:{day}")
