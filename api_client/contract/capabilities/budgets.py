"""Catalogue entries for budgets."""

from api_client.contract.word_tables import load_word_table

ADMISSIONS = {"budgets": "api_client.budgets.budget_admission:BudgetLedger"}
MONITORS = {"budgets": "api_client.budgets.budget_monitor:BudgetMonitor"}
COMMANDS = {"stats budgets": ("resources.budgets:budgets", "Show the day's budgets and what is spent.")}
WAIT_REASONS = load_word_table(__file__)
NOTIFICATION_KINDS = {
    "budget.near": "80 % of a day's budget is spent.",
    "budget.spent": "A day's budget is spent: turns that count for it are refused until it resets.",
}
