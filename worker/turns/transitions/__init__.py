"""Transitions: a turn and what happened to it in, its next change out. Pure: no store, files or clock."""
