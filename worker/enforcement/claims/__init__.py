"""Statements of an answer about the agent's work, and the tool call log that checks them. Pure."""
