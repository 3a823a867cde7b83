"""Converts a turn's events to replies for chat clients."""
