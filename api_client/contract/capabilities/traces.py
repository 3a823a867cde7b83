"""Catalogue entries for traces."""

PLUGINS = {"commands": {"traces": "traces"}}
