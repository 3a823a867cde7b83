"""What a chaos run is asked for."""

from dataclasses import dataclass

#: The part of the load's time during which things break.
FAULTY = 0.8


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What a run is asked for. ``broken``: which guard is switched off, to see that the checker notices."""

    turns: int
    seconds: float
    seed: int
    broken: str = ""
