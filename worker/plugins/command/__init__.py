"""The user's own commands as agents, each described by a declaration."""
