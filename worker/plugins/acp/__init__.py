"""Agents that speak the Agent Client Protocol: one runner, and a declaration for each of them."""
