"""A run and the verdict on its answer as one move. Pure."""

from __future__ import annotations

from dataclasses import replace

from api_client.contract.frozen import frozen
from api_client.turns.record.moves import Move


@frozen(slots=True)
class JudgedRun:
    """A run whose answer was judged before it was stored.

    Attributes:
        verdict: what followed from the answer alone. move: the run as it is stored, and what follows from its answer.
    """

    verdict: Move
    move: Move

    @classmethod
    def of(cls, run: Move, verdict: Move, judged_ms: int = 0) -> JudgedRun:
        """The verdict follows the run, in the log as in all else; ``judged_ms`` is the time between the two."""
        counters = dict(run.counters)
        for name, by in verdict.counters.items():
            counters[name] = counters.get(name, 0) + by
        move = replace(
            verdict,
            fields=run.fields | verdict.fields,
            facts=run.facts | verdict.facts,
            events=[*run.events, *verdict.events],
            counters=counters,
            run_ended=True,
            judged_ms=judged_ms,
            service=run.service,
            service_reason=run.service_reason,
        )
        return cls(verdict, move)
