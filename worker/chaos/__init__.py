"""Chaos: a whole installation under load, killed at random, and judged afterwards from its recorded history alone.

``plan`` (pure, from a seed: who asks what when, and what breaks when) -> ``stage`` (the processes) -> ``load`` (clients
over HTTP) beside ``nemesis`` (the faults) -> ``aftermath`` (what is left) -> ``history`` -> ``checker``. The checker
imports nothing of the engine, so that both cannot share a mistake.
"""
