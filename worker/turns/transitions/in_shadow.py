"""What rules in shadow add to a move: a note on the attempt and counters. Nothing that decides. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from api_client.contract.counters import counter, model_of
from api_client.contract.turn import Turn
from worker.enforcement.issue import ValidationIssue
from worker.turns.transitions.moves import Move, attempt_facts


def with_shadow(turn: Turn, move: Move, issues: Sequence[ValidationIssue]) -> Move:
    """The move with what the rules in shadow found in the answer; ``issues`` as their own severity has them."""
    names = turn.request.applied.shadow if turn.request.applied else ()
    if not names:
        return move
    rejecting = {issue.validator for issue in issues if issue.is_error}
    counted = {counter("shadow.judged", name, model_of(turn)): 1 for name in names}
    counted |= {counter("shadow.rejected", name, model_of(turn)): 1 for name in names if name in rejecting}
    found = attempt_facts(shadow=tuple(issues))
    return replace(move, facts=move.facts | found, counters={**move.counters, **counted})
