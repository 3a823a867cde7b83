"""The sub-agent that verifies a phase's output: what it is asked and what its verdict says (ADR-025)."""
