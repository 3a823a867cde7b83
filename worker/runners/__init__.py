"""Runners: ways to run an agent. All offer the same interface (``base``)."""
