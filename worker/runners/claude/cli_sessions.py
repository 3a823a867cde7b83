"""Finds the agent session that a run continues, and keeps the transcript that it made (``agent/<uuid>.jsonl``).

Later runs fork from that file, which is never changed, so a run that dies leaves no trace.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from worker.runners.agent_sessions import agent_session_id, discard_session, find_continued_session, session_file
from worker.runners.agent_sessions import keep_session as keep_session
from worker.runners.base import Order
from worker.runners.claude.cli_transcript import MAX_TRANSCRIPT, read_transcript

#: Files in a run's HOME: input of the tool hook, sign of a deferred call, and the session that ended with a question.
TOOL_ORDERS, QUESTION, ASKED = "helix-tools.json", "helix-question", "asked.jsonl"
_ENDING, _SETTINGS = ".jsonl", "helix-settings.json"
#: The user's own settings, below HOME; only a spare process gets any, with the rights of its session.
USER_SETTINGS = Path(".claude/settings.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseSession:
    """The earlier agent session, if any, that a run of the Claude CLI continues.

    Attributes:
        transcript: the file to fork from; None for a fresh session.
        knows: what it holds: nothing, ``dialogue``, ``history``, or also the user's ``message``.
        spent: its cost so far, in US dollars, to which the CLI adds.
    """

    transcript: Path | None = None
    knows: str = ""
    spent: float = 0.0


def kept_transcript(order: Order) -> Path:
    """Return the path where the transcript of a complete run is kept."""
    return session_file(order, agent_session_id(order), _ENDING)


def find_base(order: Order) -> BaseSession:
    """Return the agent session that a run continues, or an empty session if there is none."""
    if found := find_continued_session(order, _ENDING, MAX_TRANSCRIPT, read_cost):
        session, knows, spent = found
        return BaseSession(transcript=session_file(order, session, _ENDING), knows=knows, spent=spent)
    return BaseSession()


def keep_transcript(order: Order, transcript: str, home: Path, *, of: str = "") -> str:
    """Copy a run's transcript into the session's folder, and return the id of the agent session.

    ``of`` is the agent session whose transcript it is, if that is not the run's own.
    """
    session = agent_session_id(order)
    if kept_transcript(order).is_file():
        return session  # kept by the worker that this run is adopted from
    return keep_session(order, _ENDING, lambda: read_transcript(transcript, of or session, home))


def discard_base(base: BaseSession) -> None:
    """Rename a transcript that the CLI rejected, so that the next run starts a new agent session."""
    if base.transcript is not None:
        discard_session(base.transcript)


def read_cost(transcript: bytes) -> float:
    """Return a session's cost so far in US dollars, as recorded in its transcript, or 0 if unknown."""
    for line in reversed(transcript.splitlines()[-50:]):
        if b'"cost-state"' in line:
            try:
                cost = json.loads(line).get("totalCostUSD")
            except (ValueError, AttributeError):
                continue
            if isinstance(cost, int | float):
                return float(cost)
    return 0.0
