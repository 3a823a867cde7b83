"""Formats a turn as one row of a list, and its status as one word."""

from __future__ import annotations

from typing import Any

from api_client.contract.turn import Turn
from api_client.contract.turn_labels import listed_labels
from api_client.workers.reason import Wait

_PROMPT = 200


def build_turn_row(turn: Turn, wait: Wait | None = None, *, public: bool = False) -> dict[str, Any]:
    """Return a turn as a JSON-ready list row, with the start of its message and its reason for waiting."""
    return {
        "turn_id": turn.turn_id,
        "session_id": turn.request.session_id,
        "model": turn.request.model,
        **listed_labels(turn.labels),
        "owner": turn.request.owner,
        "state": turn.state.value,
        "outcome": turn.outcome.value if turn.outcome else None,
        "attempt": turn.attempt,
        "max_attempts": turn.max_attempts,
        "deliveries": turn.delivery,
        "workers_lost": turn.strikes,
        "created_at": turn.created_at,
        "finished_at": turn.finished_at,
        "worker": turn.worker,
        "error": turn.error.code if turn.error else "",
        **turn.labels,
        "waits": wait.to_dict(public=public) if wait else None,
        "prompt": " ".join(turn.request.prompt[: _PROMPT * 2].split())[:_PROMPT],
    }


def describe_status(turn: Turn) -> str:
    """Return a turn's status in one word: the outcome, ``stopping``, or the state."""
    if turn.outcome:
        return turn.outcome.value
    return "stopping" if turn.stop else turn.state.value
