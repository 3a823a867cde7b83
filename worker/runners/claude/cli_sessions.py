"""The agent session that a run continues, and keeping the one it made: its transcript, ``agent/<uuid>.jsonl``.

Later runs fork from there (``--resume FILE --fork-session --session-id NEW``). The base is never written: a run that
died leaves no trace.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from worker.runners.agent_sessions import continued, file_of, put_aside, session_of
from worker.runners.agent_sessions import keep as keep_session
from worker.runners.base import Order
from worker.runners.claude.cli_transcript import MAX_TRANSCRIPT, content_of

#: In a run's HOME: what the hook before tool calls reads, its sign that it deferred a call, and the session that ended
#: with a question.
TOOL_ORDERS, QUESTION, ASKED = "helix-tools.json", "helix-question", "asked.jsonl"
_ENDING, _SETTINGS = ".jsonl", "helix-settings.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """The base of a run that continues.

    Attributes:
        transcript: the file to fork from; None for a fresh session.
        knows: what that session has heard: nothing, ``history``, or the user's ``message`` too.
        spent: what it has cost so far, in US dollars; the CLI counts on from there.
    """

    transcript: Path | None = None
    knows: str = ""
    spent: float = 0.0


def kept_of(order: Order) -> Path:
    """Where the transcript of a complete run is kept."""
    return file_of(order, session_of(order), _ENDING)


def base_of(order: Order) -> Base:
    """The agent session a run continues, as ``agent_sessions.continued`` finds it."""
    if found := continued(order, _ENDING, MAX_TRANSCRIPT, cost_in):
        session, knows, spent = found
        return Base(transcript=file_of(order, session, _ENDING), knows=knows, spent=spent)
    return Base()


def keep(order: Order, transcript: str, home: Path, *, of: str = "") -> str:
    """Copy a run's transcript from its HOME to the session's; as ``agent_sessions.keep``.

    ``of`` is the agent session of the process that ran it, where that had run others before.
    """
    session = session_of(order)
    if kept_of(order).is_file():
        return session  # by the worker that this finished run is adopted from
    return keep_session(order, _ENDING, lambda: content_of(transcript, of or session, home))


def forget(base: Base) -> None:
    """Put a transcript aside that the CLI does not take, so that the next run starts afresh."""
    if base.transcript is not None:
        put_aside(base.transcript)


def cost_in(transcript: bytes) -> float:
    """Return what a session has cost so far, in US dollars, by its transcript; 0 where it does not say."""
    for line in reversed(transcript.splitlines()[-50:]):
        if b'"cost-state"' in line:
            try:
                cost = json.loads(line).get("totalCostUSD")
            except (ValueError, AttributeError):
                continue
            if isinstance(cost, int | float):
                return float(cost)
    return 0.0
