"""Catalogue entries for tool calls that need a person's approval."""

FAILPOINTS = {"permit.asked": "approval server: the call that a person allowed is about to run, its yes is not used up"}
