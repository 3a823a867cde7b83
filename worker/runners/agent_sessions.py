"""The agent session that a run goes on from, and keeping the one that it made.

Each run has its own HOME, so no two runs share a file of a session. Of a complete run one file is kept,
``agent/<uuid>`` with the ending of its runner; nothing else an agent wrote into its HOME reaches the next one.
"""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import structlog

from worker.files.safe_io import made, opened, read, replace
from worker.files.session import RULES, continued_session
from worker.runners.base import Order

log = structlog.get_logger()

#: Where agent sessions and the HOMEs of runs are, below the session's folder.
TRANSCRIPTS = "agent"
#: Longest CLAUDE.md that is read, in bytes.
_MAX_INSTRUCTIONS = 64 * 2**20

_RUNS = uuid.UUID("6f1b8f0e-5a0c-4f5e-9d0a-0d6a2c1e8b34")
_UUID = re.compile(r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}", re.ASCII)

T = TypeVar("T")


def session_of(order: Order) -> str:
    """The agent session of a run: its own UUID for every delivery, the same whenever it is computed."""
    return str(uuid.uuid5(_RUNS, order.mark))


def home_of(order: Order) -> Path:
    """The HOME of a run."""
    return order.workdir / TRANSCRIPTS / order.directory.name


def file_of(order: Order, session: str, ending: str) -> Path:
    """Where an agent session is kept."""
    return order.workdir / TRANSCRIPTS / f"{session}{ending}"


def continued(
    order: Order, ending: str, most: int, reader: Callable[[bytes], T], *, history: bool = True
) -> tuple[str, str, T] | None:
    """The agent session that a run continues: its name, what it has heard, and what ``reader`` makes of its file.

    That is this turn's last complete run, which has heard the user's ``message``; else, with ``history``, the session's
    last accepted answer, where the conversation goes on from it (an edited or regenerated one starts afresh): that has
    heard the ``history``. One that is gone, damaged (``reader`` raises ``ValueError``) or larger than ``most`` bytes is
    skipped: the run starts afresh with the whole conversation.
    """
    candidates = [(order.agent_session, "message")]
    if history:
        candidates.append((continued_session(order.workdir, order.messages), "history"))
    for session, knows in candidates:
        if not _UUID.fullmatch(session):
            continue
        try:
            with opened(order.workdir) as root, opened(TRANSCRIPTS, root) as folder:
                return session, knows, reader(read(f"{session}{ending}", folder, most))
        except (OSError, ValueError) as error:
            log.warning("agent.session_gone", agent_session=session, reason=str(error))
    return None


def keep(order: Order, ending: str, content: Callable[[], bytes]) -> str:
    """Keep a complete run's session; its name, or nothing where that was not possible, which is logged.

    ``content`` may raise ``OSError`` and ``ValueError``.
    """
    session = session_of(order)
    try:
        packed = content()
        with opened(order.workdir) as root, made(root, TRANSCRIPTS) as folder:
            replace(f"{session}{ending}", packed, folder)
            os.fsync(folder)
    except (OSError, ValueError) as error:
        log.warning("agent.session_not_kept", agent_session=session, reason=str(error))
        return ""
    return session


def put_aside(file: Path) -> None:
    """Put a session aside that its agent does not take, so that the next run starts afresh."""
    if file.is_file():
        file.rename(file.with_suffix(".refused"))


def instructions_of(order: Order) -> str:
    """The session's CLAUDE.md; empty when there is none."""
    try:
        with opened(order.workdir) as session:
            return read(RULES, session, _MAX_INSTRUCTIONS).decode("utf-8", "replace")
    except OSError:
        return ""
