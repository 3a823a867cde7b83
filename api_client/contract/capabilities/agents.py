"""Catalogue entries for external agents."""

PLUGINS = {"runners": {name: name for name in ("acp", "codex", "command", "python")}}
