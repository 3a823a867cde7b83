"""Implement ``turns stats budgets``."""

from __future__ import annotations

from api_client.resources.budgets import BUDGETS
from worker.cli.resources.listing import make_list_command

budgets = make_list_command(
    BUDGETS,
    "budgets",
    """Show each budget of HELIX_BUDGETS, what was spent of it today, and when it resets; the most used first.

    A budget that is spent, or set aside for turns at work, refuses new turns: 429 budget_exceeded.
    """,
    example="stats budgets",
)
