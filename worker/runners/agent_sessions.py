"""Finds the agent session that a run continues, and keeps the session that the run creates (``agent/<uuid>``)."""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import structlog

from worker.files.safe_io import ensure_folder, open_folder, read_file, replace_file
from worker.files.session import RULES, find_agent_session
from worker.runners.base import Order
from worker.runners.sent_input import WHOLE_SESSION

log = structlog.get_logger()

#: Folder for agent sessions and for the HOMEs of runs, below the session's folder.
TRANSCRIPTS = "agent"
_MAX_INSTRUCTIONS = 64 * 2**20

_RUNS = uuid.UUID("6f1b8f0e-5a0c-4f5e-9d0a-0d6a2c1e8b34")
_UUID = re.compile(r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}", re.ASCII)

T = TypeVar("T")


def agent_session_id(order: Order) -> str:
    """Return the id of the agent session that a run creates: a UUID derived from the run's process tag."""
    return str(uuid.uuid5(_RUNS, order.process_tag))


def home_folder(order: Order) -> Path:
    """Return the path of the folder that a run's agent uses as its HOME."""
    return order.workdir / TRANSCRIPTS / order.directory.name


def session_file(order: Order, session: str, ending: str) -> Path:
    """Return the path of the file that holds an agent session between runs."""
    return order.workdir / TRANSCRIPTS / f"{session}{ending}"


def find_continued_session(
    order: Order, ending: str, most: int, reader: Callable[[bytes], T], *, history: bool = True
) -> tuple[str, str, T] | None:
    """Return the id, content and parsed file of the agent session to continue, or None if there is no session.

    The content is ``message`` if the turn's last complete run holds the user's message, or, with ``history``, what the
    session of the last accepted answer knows (``find_agent_session``). Missing, damaged and larger files (more than
    ``most`` bytes) are skipped.
    """
    candidates = [(order.agent_session, WHOLE_SESSION)]
    if history:
        candidates.append(find_agent_session(order.workdir, order.messages))
    for session, knows in candidates:
        if not _UUID.fullmatch(session):
            continue
        try:
            with open_folder(order.workdir) as root, open_folder(TRANSCRIPTS, root) as folder:
                return session, knows, reader(read_file(f"{session}{ending}", folder, most))
        except (OSError, ValueError) as error:
            log.warning("agent.session_gone", agent_session=session, reason=str(error))
    return None


def keep_session(order: Order, ending: str, content: Callable[[], bytes]) -> str:
    """Save the agent session of a complete run for later runs. Return its id, or "" if saving failed.

    ``content`` may raise ``OSError`` and ``ValueError``.
    """
    session = agent_session_id(order)
    try:
        packed = content()
        with open_folder(order.workdir) as root, ensure_folder(root, TRANSCRIPTS) as folder:
            replace_file(f"{session}{ending}", packed, folder)
            os.fsync(folder)
    except (OSError, ValueError) as error:
        log.warning("agent.session_not_kept", agent_session=session, reason=str(error))
        return ""
    return session


def discard_session(file: Path) -> None:
    """Rename a session file that the agent rejected, so that the next run starts a new session."""
    if file.is_file():
        file.rename(file.with_suffix(".refused"))


def read_session_rules(order: Order) -> str:
    """Return the content of the CLAUDE.md in the session's folder, or an empty string if there is none."""
    try:
        with open_folder(order.workdir) as session:
            return read_file(RULES, session, _MAX_INSTRUCTIONS).decode("utf-8", "replace")
    except OSError:
        return ""
