"""The user's own commands as agents, each with a declaration."""
