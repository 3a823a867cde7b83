"""A finished run and the verdict on its answer, combined into one transition."""

from __future__ import annotations

from dataclasses import replace

from api_client.contract.frozen import checked_frozen
from api_client.turns.record.transition import Transition


@checked_frozen(slots=True)
class ValidatedRun:
    """A finished run and the verdict on its answer, stored together in one transition.

    ``verdict`` is the transition after validating the answer.
    """

    verdict: Transition
    transition: Transition

    @classmethod
    def of(cls, run: Transition, verdict: Transition, validation_ms: int = 0) -> ValidatedRun:
        """Combine the transition after a run with the transition after validating its answer."""
        counters = dict(run.counters)
        for name, by in verdict.counters.items():
            counters[name] = counters.get(name, 0) + by
        transition = replace(
            verdict,
            fields=run.fields | verdict.fields,
            facts=run.facts | verdict.facts,
            events=[*run.events, *verdict.events],
            counters=counters,
            run_ended=True,
            validation_ms=validation_ms,
            service=run.service,
            service_reason=run.service_reason,
        )
        return cls(verdict, transition)
