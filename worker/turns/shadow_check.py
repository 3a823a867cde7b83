"""Additional checks of answers that run beside the active rules and never decide."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from api_client.contract.attempt_record import AttemptFacts
from api_client.contract.record import FieldChanges
from api_client.contract.turn import Turn
from api_client.turns.record.transition import Transition
from worker.enforcement.attempt import Attempt
from worker.enforcement.validators.services import NOTHING_SPENT, ValidationCost
from worker.turns.engine_parts import EngineParts
from worker.turns.validation_pool import ValidationCase


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowResult:
    """The result of an additional check of an answer: facts for the turn's record, counters and costs."""

    facts: FieldChanges[AttemptFacts]
    counters: Mapping[str, int]
    spent: ValidationCost = NOTHING_SPENT

    def add_to_transition(self, transition: Transition) -> Transition:
        """Return a copy of the transition that also stores this result."""
        return replace(
            transition, facts=transition.facts | self.facts, counters={**transition.counters, **self.counters}
        )


class ShadowCheck:
    """Base class for additional checks of answers, whose results are stored but never change the decision."""

    def applies_to(self, turn: Turn) -> bool:
        """Return True if this check should run on the answers of the given turn."""
        raise NotImplementedError

    async def check_answer(
        self, parts: EngineParts, turn: Turn, case: ValidationCase, attempt: Attempt, seconds_left: float
    ) -> ShadowResult:
        """Check an answer within ``seconds_left`` and return the result. Must not raise."""
        raise NotImplementedError
