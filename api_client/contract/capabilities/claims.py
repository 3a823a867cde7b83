"""Statements in answers that are checked against what the agent did: their part of the catalogues."""

PLUGINS = {"rules": {"claims": "claims"}}
