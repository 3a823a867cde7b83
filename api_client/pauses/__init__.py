"""Obstacles to the start of turns: pauses that operators set, and circuit breakers of models."""
