"""What a chaos run is asked for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What a run is asked for. ``broken``: which guard is switched off, to see that the checker notices."""

    turns: int
    seconds: float
    seed: int
    broken: str = ""
