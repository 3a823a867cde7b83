"""Your own commands as agents, each by a declaration."""
