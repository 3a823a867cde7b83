"""How much is measured, and in what order."""

from __future__ import annotations

from dataclasses import dataclass

from tests.lab.bench.load import work
from tests.lab.bench.turns.rows import CHAIN, ROWS

#: The peers that every ratio is taken with, and ours: enough for one's own step.
QUICK = ("ours", CHAIN, "taskiq", "dramatiq")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What one run of the bench measures.

    Attributes:
        rows: names of ``ROWS``. alone: seconds of turns one at a time. together: seconds of ``in_flight`` at once.
        stream: seconds of streamed answers, 0 for none. watched: turns whose commands MONITOR counts, once a row.
        rest: seconds until what turns left behind is done. idle: seconds without work, looked at once.
        wait: seconds a thousand turns have to begin; 0 leaves that out.
    """

    rounds: int = 5
    rows: tuple[str, ...] = tuple(ROWS)
    kinds: tuple[str, ...] = (work.FIRST, work.REJECTED)
    alone: float = 1.5
    together: float = 2.5
    in_flight: int = 50
    stream: float = 2.0
    watched: int = 20
    rest: float = 3.0
    idle: float = 10.0
    wait: float = 30.0
    durability: str = "everysec"

    def quick(self) -> Plan:
        """The same in well under a minute: the turn that is rejected once, on fewer rows."""
        rows = tuple(name for name in self.rows if name in QUICK) if self.rows == tuple(ROWS) else self.rows
        return Plan(
            rounds=self.rounds,
            rows=rows,
            kinds=(work.REJECTED,),
            alone=0.7,
            together=2.0,
            stream=0.0,
            watched=10,
            rest=2.0,
            idle=4.0,
            wait=0.0,
            durability=self.durability,
        )
