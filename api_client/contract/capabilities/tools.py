"""Catalogue entries for the tool gateway."""

PLUGINS = {"equipment": {"tools": "tools"}, "commands": {"turn.calls": "tools"}}
