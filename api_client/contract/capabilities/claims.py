"""Catalogue entries for the check of statements in answers against what the agent did."""

PLUGINS = {"rules": {"claims": "claims"}}
