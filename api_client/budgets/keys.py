"""The Redis keys of budgets."""

from __future__ import annotations

from api_client.contract.keys import KeyNames, named_key


class BudgetKeys(KeyNames):
    """Names the Redis keys that store the budgets of an installation."""

    #: Redis hash: reservations of turns, by turn id (JSON).
    reservations = named_key("spending:reserved")
    #: Redis hash: the cost of each model's dearest recent run, in millionths of a dollar.
    prices = named_key("spending:prices")

    def spending_key(self, day: int) -> str:
        """Return the key of the Redis hash with the amounts spent on one day."""
        return self.key_named(f"spending:{day}")
