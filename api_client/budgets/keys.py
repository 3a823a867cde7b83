"""The Redis keys of budgets."""

from __future__ import annotations

from api_client.contract.keys import KeyNames, named


class BudgetKeys(KeyNames):
    """The Redis key names for the budgets of an installation."""

    #: Redis hash: reservations of turns, by turn id (JSON).
    reservations = named("spending:reserved")
    #: Redis hash: the cost of each model's dearest recent run, in millionths of a dollar.
    prices = named("spending:prices")

    def spending(self, day: int) -> str:
        """Return the key of the Redis hash with the amounts spent on one day."""
        return self.named(f"spending:{day}")
