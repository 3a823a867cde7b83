"""The agent sessions of a consultant session: which one a run continues, and keeping the one it made.

Each run has its own HOME, so no two runs share a transcript, and nothing an agent wrote into its HOME reaches the
next one. A complete run's transcript is copied to the session's ``agent/<uuid>.jsonl``; later runs fork from there
(``--resume FILE --fork-session --session-id NEW``). The base is never written: a run that died leaves no trace.
"""

from __future__ import annotations

import json
import os
import re
import uuid
from dataclasses import dataclass
from pathlib import Path

import structlog

from worker.files.safe_io import made, opened, read, replace
from worker.files.session import continued_session
from worker.runners.base import Order
from worker.runners.claude.cli_transcript import MAX_TRANSCRIPT, content_of

log = structlog.get_logger()

#: Where a session's transcripts are, below its folder.
TRANSCRIPTS = "agent"

_RUNS = uuid.UUID("6f1b8f0e-5a0c-4f5e-9d0a-0d6a2c1e8b34")
_UUID = re.compile(r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}", re.ASCII)


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


def session_of(order: Order) -> str:
    """The agent session of a run: its own UUID for every delivery, the same whenever it is computed."""
    return str(uuid.uuid5(_RUNS, order.mark))


def base_of(order: Order) -> Base:
    """The agent session a run continues: this turn's last complete run, else the session's last accepted answer.

    The second only where the conversation goes on from that answer (an edited or regenerated one starts afresh). A
    transcript that is gone is not an error: the run starts afresh with the whole conversation.
    """
    candidates = [(order.agent_session, "message")]
    if accepted := continued_session(order.workdir, order.messages):
        candidates.append((accepted, "history"))
    for session, knows in candidates:
        if not _UUID.fullmatch(session):
            continue
        path = order.workdir / TRANSCRIPTS / f"{session}.jsonl"
        try:
            with opened(order.workdir) as root, opened(TRANSCRIPTS, root) as kept:
                content = read(path.name, kept, MAX_TRANSCRIPT)
        except OSError as error:
            log.warning("agent.session_gone", agent_session=session, reason=str(error))
            continue
        return Base(transcript=path, knows=knows, spent=cost_in(content))
    return Base()


def keep(order: Order, session: str, transcript: str, home: Path) -> bool:
    """Copy a run's transcript from its HOME to the session's; False, and logged, when it cannot be kept."""
    if (order.workdir / TRANSCRIPTS / f"{session}.jsonl").is_file():
        return True  # by the worker that this finished run is adopted from
    try:
        content = content_of(transcript, session, home)
        with opened(order.workdir) as root, made(root, TRANSCRIPTS) as kept:
            replace(f"{session}.jsonl", content, kept)
            os.fsync(kept)
    except (OSError, ValueError) as error:
        log.warning("agent.session_not_kept", agent_session=session, reason=str(error))
        return False
    return True


def forget(base: Base) -> None:
    """Put a transcript aside that the CLI does not take, so that the next run starts afresh."""
    if base.transcript is not None and base.transcript.exists():
        base.transcript.rename(base.transcript.with_suffix(".refused"))


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
