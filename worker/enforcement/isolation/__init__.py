"""Validators in a child process: one that hangs, dies or eats memory is blamed alone, wherever it runs."""

from worker.enforcement.isolation.stand_in import MEMORY_MB, MOST_CHARACTERS, SECONDS, in_place, isolated

__all__ = ["MEMORY_MB", "MOST_CHARACTERS", "SECONDS", "in_place", "isolated"]
