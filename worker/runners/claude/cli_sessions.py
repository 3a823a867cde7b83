"""Find the agent session that a run continues, and keep the transcript it made (``agent/<uuid>.jsonl``).

Later runs fork from that file (``--resume FILE --fork-session --session-id NEW``). The file is never changed, so a run
that dies leaves no trace.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from worker.runners.agent_sessions import continued, file_of, put_aside, session_of
from worker.runners.agent_sessions import keep as keep_session
from worker.runners.base import Order
from worker.runners.claude.cli_transcript import MAX_TRANSCRIPT, content_of

#: Files in a run's HOME: input of the tool hook, sign of a deferred call, and the session that ended with a question.
TOOL_ORDERS, QUESTION, ASKED = "helix-tools.json", "helix-question", "asked.jsonl"
_ENDING, _SETTINGS = ".jsonl", "helix-settings.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """The agent session that a run continues.

    Attributes:
        transcript: the file to fork from; None for a fresh session.
        knows: what it holds: nothing, ``history``, or also the user's ``message``.
        spent: its cost so far, in US dollars, to which the CLI adds.
    """

    transcript: Path | None = None
    knows: str = ""
    spent: float = 0.0


def kept_of(order: Order) -> Path:
    """Return the path for a complete run's transcript."""
    return file_of(order, session_of(order), _ENDING)


def base_of(order: Order) -> Base:
    """Find the agent session that a run continues."""
    if found := continued(order, _ENDING, MAX_TRANSCRIPT, cost_in):
        session, knows, spent = found
        return Base(transcript=file_of(order, session, _ENDING), knows=knows, spent=spent)
    return Base()


def keep(order: Order, transcript: str, home: Path, *, of: str = "") -> str:
    """Copy a run's transcript from its HOME to the session's folder, and return the agent session.

    ``of`` names the agent session of a process that ran several messages.
    """
    session = session_of(order)
    if kept_of(order).is_file():
        return session  # kept by the worker that this run is adopted from
    return keep_session(order, _ENDING, lambda: content_of(transcript, of or session, home))


def forget(base: Base) -> None:
    """Put aside a transcript that the CLI rejects, so that the next run starts fresh."""
    if base.transcript is not None:
        put_aside(base.transcript)


def cost_in(transcript: bytes) -> float:
    """Read a session's cost so far from its transcript, in US dollars; 0 if unknown."""
    for line in reversed(transcript.splitlines()[-50:]):
        if b'"cost-state"' in line:
            try:
                cost = json.loads(line).get("totalCostUSD")
            except (ValueError, AttributeError):
                continue
            if isinstance(cost, int | float):
                return float(cost)
    return 0.0
