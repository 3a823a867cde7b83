"""The keys of budgets."""

from __future__ import annotations

from api_client.contract.keys import KeyNames, named


class BudgetKeys(KeyNames):
    """The names of the keys of an installation's budgets."""

    #: Hash: the amounts set aside for turns that count for a budget, by turn (JSON).
    reservations = named("spending:reserved")
    #: Hash: what the dearest run of each model lately cost, in millionths of a dollar.
    prices = named("spending:prices")

    def spending(self, day: int) -> str:
        """Hash: what was spent on the day that began at this second, by scope."""
        return self.named(f"spending:{day}")
