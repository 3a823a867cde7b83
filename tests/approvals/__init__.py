"""Tries to run what was not allowed, through the real hooks and agents."""
