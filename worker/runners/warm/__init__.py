"""Agents whose process waits for the next message of its session, and spare processes for new sessions."""
