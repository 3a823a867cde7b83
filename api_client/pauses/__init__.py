"""Obstacles that keep turns from starting: operators' pauses, circuit breakers, and rate limits of services."""
