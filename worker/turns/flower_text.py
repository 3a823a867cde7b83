"""Texts that Flower shows for running and finished tasks: ids, numbers and codes, but no content of a turn."""

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


def describe_start(turn: Turn, chain_task: ChainTask, history: Sequence[AttemptRecord]) -> str:
    """Describe the start of a task and why it runs again, for example ``attempt 2/3: MISSING_STEP_MARKER``."""
    before = (
        [record for record in history if record.number == chain_task.attempt - 1] if runs_agent(chain_task.task) else []
    )
    if not before:
        return _describe_attempt(turn, chain_task)
    why = ", ".join(error_codes(before[0].issues)) or str(before[0].completion.get("verdict", ""))
    return f"{_describe_attempt(turn, chain_task)}: {why}" if why else _describe_attempt(turn, chain_task)


def describe_end(turn: Turn, chain_task: ChainTask, transition: Transition, outcome: str) -> str:
    """Describe a finished task's result, for example ``attempt 1/3: rejected, MISSING_STEP_MARKER; asked again``."""
    said = [*filter(None, map(_describe_event, transition.events))]
    if outcome:
        said.append(f"turn {outcome}")
    elif transition.next and not runs_agent(chain_task.task):
        said.append(all_tasks()[transition.next.task].follows)
    elif transition.next and runs_agent(transition.next.task):
        said.append("runs again")
    return f"{_describe_attempt(turn, chain_task)}: {'; '.join(filter(None, said)) or 'done'}"


def describe_loss(worker: str) -> str:
    """Return the text that Flower shows as a task's result if the task's worker died or froze."""
    return f"WorkerLost: {worker} died or froze; the turn was taken from it"


def _describe_attempt(turn: Turn, chain_task: ChainTask) -> str:
    return f"attempt {chain_task.attempt}/{turn.max_attempts}"


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
