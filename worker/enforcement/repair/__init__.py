"""Repairs of answers by code, without asking the agent again (ADR-038)."""
