"""Catalogue entries for traces."""

PLUGINS = {"commands": {"run.traces": "traces"}}
