"""The port of second judges, which check an answer beside its active rules without deciding."""

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
class SecondVerdict:
    """The findings of an additional check of an answer: facts for the record, counters and costs."""

    facts: FieldChanges[AttemptFacts]
    counters: Mapping[str, int]
    spent: ValidationCost = NOTHING_SPENT

    def add_to_transition(self, move: Transition) -> Transition:
        """Return a copy of the transition with these findings added."""
        return replace(move, facts=move.facts | self.facts, counters={**move.counters, **self.counters})


class SecondJudge:
    """Base class for additional checks of answers that are recorded and charged but never change the decision."""

    def applies_to(self, turn: Turn) -> bool:
        """Return whether this judge wants to check the answers of the given turn."""
        raise NotImplementedError

    async def check_answer(
        self, parts: EngineParts, turn: Turn, case: ValidationCase, attempt: Attempt, seconds_left: float
    ) -> SecondVerdict:
        """Check an answer within the turn's remaining ``seconds_left`` and return the findings. Must not raise."""
        raise NotImplementedError
