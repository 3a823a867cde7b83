"""Daily budgets of owners, keys and models, and their spending."""
