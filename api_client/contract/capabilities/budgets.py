"""Catalogue entries for budgets."""

NOTIFICATION_KINDS = {
    "budget.near": "80 % of a day's budget is spent.",
    "budget.spent": "A day's budget is spent: turns that count for it are refused until it resets.",
}
