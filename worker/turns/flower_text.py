"""Texts that Flower shows to operators for running and finished tasks.

The texts contain ids, numbers and codes, but no content of a turn.
"""

from __future__ import annotations

from collections.abc import Sequence

from api_client.contract.attempt_record import AttemptRecord
from api_client.contract.event_kinds import (
    AttemptAccepted,
    AttemptCompleted,
    AttemptLost,
    AttemptRejected,
    TurnMended,
    TurnSuspended,
)
from api_client.contract.events import Body
from api_client.contract.hand_overs import describe_hand_over
from api_client.contract.issue import error_codes
from api_client.contract.tasks import ChainTask, all_tasks, runs_agent
from api_client.contract.turn import Turn
from api_client.turns.record.transition import Transition


def describe_start(turn: Turn, link: ChainTask, history: Sequence[AttemptRecord]) -> str:
    """Describe the start of a task and why it runs again, for example ``attempt 2/3: MISSING_STEP_MARKER``."""
    before = [record for record in history if record.number == link.attempt - 1] if runs_agent(link.task) else []
    if not before:
        return _describe_attempt(turn, link)
    why = ", ".join(error_codes(before[0].issues)) or str(before[0].completion.get("verdict", ""))
    return f"{_describe_attempt(turn, link)}: {why}" if why else _describe_attempt(turn, link)


def describe_end(turn: Turn, link: ChainTask, move: Transition, outcome: str) -> str:
    """Describe a finished task's result, for example ``attempt 1/3: rejected, MISSING_STEP_MARKER; asked again``."""
    said = [*filter(None, map(_describe_event, move.events))]
    if outcome:
        said.append(f"turn {outcome}")
    elif move.next and not runs_agent(link.task):
        said.append(all_tasks()[move.next.task].follows)
    elif move.next and runs_agent(move.next.task):
        said.append("runs again")
    return f"{_describe_attempt(turn, link)}: {'; '.join(filter(None, said)) or 'done'}"


def describe_loss(worker: str) -> str:
    """Return the text that Flower shows as a task's result if the task's worker died or froze."""
    return f"WorkerLost: {worker} died or froze; the turn was taken from it"


def _describe_attempt(turn: Turn, link: ChainTask) -> str:
    return f"attempt {link.attempt}/{turn.max_attempts}"


def _describe_event(body: Body) -> str:
    match body:
        case AttemptCompleted():
            return body.verdict
        case AttemptAccepted():
            return "accepted"
        case AttemptRejected():
            return ", ".join(["rejected", *error_codes(body.issues)])
        case TurnSuspended():
            return "waits for a decision"
        case AttemptLost():
            return describe_hand_over(body.during)
        case TurnMended():
            return f"repaired, {len(body.changes)} changed"
        case _:  # the next task or the outcome is described elsewhere
            return ""
