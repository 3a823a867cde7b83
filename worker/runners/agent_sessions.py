"""What a run goes on from: the agent session before it, and a person's answer; and keeping the session that it made.

Each run has its own HOME, so no two runs share a file of a session. Of a complete run one file is kept,
``agent/<uuid>`` with the ending of its runner; nothing else an agent wrote into its HOME reaches the next one.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import structlog

from api_client.contract.keys import delivery_name
from api_client.contract.tool_calls import ToolRule, WaitingCall
from worker.files.safe_io import made, opened, read, replace
from worker.files.session import RULES, continued_session
from worker.runners import tool_gate
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


# A tool call that a person is asked about: the run ends with the question, and a later one goes on from the answer.
#
# A yes to one call is a file: it moves from delivery to delivery, and its call uses it up. The hook or client that lets
# the call run removes the file first (``tool_gate.used_up``). So where an earlier delivery still has it, the call has
# not run there, and can run there no more once the file is here.

#: Below a delivery's folder: no tool of Claude writes into ``marks``, and nothing in it is published.
_PERMIT = Path("marks", "permit")


def permit_of(order: Order) -> Path | None:
    """The permit of a run that goes on after a yes; None where there was no yes, or the call may have run.

    Raises:
        OSError: it cannot be written, or moved.
    """
    answered = order.answered
    if answered is None or answered.allowed != "yes":
        return None
    own, first = order.directory / _PERMIT, answered.answered + 1
    own.parent.mkdir(exist_ok=True)
    if order.delivery == first:
        own.touch(exist_ok=False)
        return own
    for number in range(order.delivery - 1, first - 1, -1):
        earlier = order.directory.with_name(delivery_name(order.turn_id, order.attempt, number)) / _PERMIT
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            return earlier.rename(own)
    return None


def waiting(order: Order, tool: str, given: Mapping[str, Any], call: str = "") -> WaitingCall | None:
    """The call that a person is asked about: the rules say who, and for how long; None where no rule has one asked.

    ``call`` is its id, of an agent that goes on with that very call; others make it again, in another run.
    """
    tools, folder = order.tools, str(order.directory)
    rule = tool_gate.ruling(tools.rules, tool, given, root=str(tools.root), folder=folder) if tools else {}
    if not rule or rule.get("do", "ask") != "ask":
        return None
    asked, digest = ToolRule(**rule), tool_gate.digest(tool, given, folder)
    # The next delivery has another folder: a call that is made there again is shown without this one's name.
    shown = given if call else json.loads(json.dumps(given, ensure_ascii=False).replace(folder, "."))
    return WaitingCall(
        call=call or digest, tool=tool, arguments=shown, digest=digest, wait_seconds=asked.wait_seconds, who=asked.who
    )


def answer_to(order: Order) -> dict[str, str] | None:
    """What a person said about an earlier run's call, with a yes's permit. Raises ``OSError``: as ``permit_of``."""
    answered = order.answered
    if answered is None:
        return None
    return {"digest": answered.digest, "allowed": answered.allowed, "permit": str(permit_of(order) or "")}
