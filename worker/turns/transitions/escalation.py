"""The move when all attempts have failed: pure functions to a move. No clock, no store, no file.

Stage 1: another model on its own, in a fresh agent session, with the issues as hints and the state before all
attempts. Stage 2: the turn is parked, and a person decides. Each stage is bounded, and a turn goes through each at
most once; a turn that a person had asked again comes back to that person.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from api_client.contract.counters import counter
from api_client.contract.escalation import Escalation
from api_client.contract.event_kinds import TurnEscalated, TurnParked
from api_client.contract.issue import ValidationIssue
from api_client.contract.messages import consulted, line_of
from api_client.contract.turn import PendingFailure, Turn, TurnState
from api_client.contract.work import find_work
from api_client.turns.record.moves import Move, again, attempt_facts, progress

STAGE_CONSULTANT, STAGE_HUMAN = 1, 2


def escalated(turn: Turn, move: Move, *, best: int, reason: str, issues: Sequence[ValidationIssue]) -> Move | None:
    """The move that escalates instead of failing, or None when there is no stage left.

    The facts, events, fields and counters of ``move`` are kept. ``best`` is the attempt a person would accept,
    ``reason`` one word for why the attempts failed.
    """
    escalation = turn.request.escalation
    if escalation is None:
        return None
    if turn.stage < STAGE_CONSULTANT and escalation.model and escalation.runs:
        return _asks_consultant(turn, move, escalation, best, reason, issues)
    if escalation.human:
        return _parks(turn, move, escalation, best, reason, issues)
    return None


def _asks_consultant(
    turn: Turn, move: Move, escalation: Escalation, best: int, reason: str, issues: Sequence[ValidationIssue]
) -> Move:
    escalating = TurnEscalated(
        attempt=move.attempt,
        stage=STAGE_CONSULTANT,
        reason=reason,
        model=escalation.model,
        issues=tuple(issues),
    )
    hints = [line_of(issue) for issue in issues]
    return replace(
        move,
        state=TurnState.QUEUED,
        next=again(turn, move.attempt + 1),
        fields=move.fields
        | progress(
            stage=STAGE_CONSULTANT,
            stage_model=escalation.model,
            allowed=move.attempt + escalation.runs,
            agent_session="",
            fresh_from=move.attempt,
            transients=0,
            best=best,
        ),
        facts=move.facts
        | attempt_facts(decision="escalate", feedback=consulted(_task(turn), turn.request.locale, hints)),
        events=[*move.events, escalating],
        counters={**move.counters, counter("turn.escalated", str(STAGE_CONSULTANT)): 1},
    )


def _task(turn: Turn) -> str:
    """The task for an agent that starts afresh; work beside sessions tells it at every fresh start anyway."""
    return turn.request.prompt if find_work(turn.request).in_session else ""


def _parks(
    turn: Turn, move: Move, escalation: Escalation, best: int, reason: str, issues: Sequence[ValidationIssue]
) -> Move:
    escalating = TurnEscalated(attempt=move.attempt, stage=STAGE_HUMAN, reason=reason, issues=tuple(issues))
    parked = TurnParked(
        attempt=move.attempt,
        turn_id=turn.turn_id,
        reason=reason,
        timeout_seconds=escalation.timeout_seconds,
        default=escalation.default,
    )
    return replace(
        move,
        state=TurnState.PARKED,
        next=None,
        fields=move.fields
        | progress(
            stage=STAGE_HUMAN, best=best, decide_default=escalation.default, failing=PendingFailure(reason=reason)
        ),
        facts=move.facts | attempt_facts(decision="escalate"),
        events=[*move.events, escalating, parked],
        counters={**move.counters, counter("turn.escalated", str(STAGE_HUMAN)): 1},
        park_seconds=escalation.timeout_seconds,
    )
