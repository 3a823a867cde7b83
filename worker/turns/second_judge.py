"""The port of second judges: they judge an answer beside its active rules, and decide nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from api_client.contract.attempt_record import AttemptFacts
from api_client.contract.record import FieldChanges
from api_client.contract.turn import Turn
from api_client.turns.record.moves import Move
from worker.enforcement.attempt import Attempt
from worker.enforcement.validators.services import NOTHING_SPENT, JudgingCost
from worker.turns.judges import Case
from worker.turns.parts import EngineParts


@dataclass(frozen=True, slots=True, kw_only=True)
class SecondVerdict:
    """What a second judge found: facts of the attempt, counters, and what it cost."""

    facts: FieldChanges[AttemptFacts]
    counters: Mapping[str, int]
    spent: JudgingCost = NOTHING_SPENT

    def join(self, move: Move) -> Move:
        """Return the move with what was found."""
        return replace(move, facts=move.facts | self.facts, counters={**move.counters, **self.counters})


class SecondJudge:
    """Judges some turns' answers. Nothing that happens to it concerns the turn, but what it costs."""

    def judges(self, turn: Turn) -> bool:
        """Return whether it judges the answers of this turn."""
        raise NotImplementedError

    async def judge(
        self, parts: EngineParts, turn: Turn, case: Case, attempt: Attempt, seconds_left: float
    ) -> SecondVerdict:
        """Judge an answer that was judged; the turn has so many seconds left. It may raise nothing."""
        raise NotImplementedError
