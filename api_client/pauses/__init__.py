"""Obstacles to the start of turns: pauses that operators set, circuit breakers of models, limits of services."""
