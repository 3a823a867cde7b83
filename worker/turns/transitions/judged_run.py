"""A run and the verdict on its answer as one move. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from worker.turns.transitions.moves import Move


@dataclass(frozen=True, slots=True)
class JudgedRun:
    """A run whose answer was judged before it was stored.

    Attributes:
        verdict: what followed from the answer alone.
        move: what is stored: the run, and what follows from its answer.
    """

    verdict: Move
    move: Move

    @classmethod
    def of(cls, run: Move, verdict: Move) -> JudgedRun:
        """The verdict follows the run, in the log as in all else."""
        move = replace(
            verdict,
            fields=run.fields | verdict.fields,
            facts=run.facts | verdict.facts,
            events=[*run.events, *verdict.events],
            counters=dict(Counter(run.counters) + Counter(verdict.counters)),
            run_ended=True,
            service=run.service,
            service_reason=run.service_reason,
        )
        return cls(verdict, move)
