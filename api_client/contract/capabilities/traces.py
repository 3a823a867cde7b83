"""Traces: their part of the catalogues."""

PLUGINS = {"commands": {"traces": "traces"}}
