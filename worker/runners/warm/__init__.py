"""Agents whose process waits for the next message of its session, and spares that wait for a new session."""
