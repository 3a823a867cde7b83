"""Agents of others: their part of the catalogues."""

PLUGINS = {"runners": {name: name for name in ("acp", "codex", "command", "python")}}
