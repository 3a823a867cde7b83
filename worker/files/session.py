"""The folder of a consultant session as agents and people read it (ADR-034, docs/sessions.md).

    CLAUDE.md              the agent's instructions, from a template
    status.json            the old format; new facts stand in new keys only
    input/request.md       the original request; beside it the images of the user's messages
    context/messages.json  the conversation; context/*.md are documents people lay there

Written before each run and after each accepted answer, by the holder of the turn. Nothing here steers a turn: the
ledger does. The step comes from the agent's answer alone.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from json.encoder import encode_basestring
from pathlib import Path
from typing import Any, Protocol

import structlog

from api_client.contract.marker import page_text
from api_client.contract.turn import Turn
from worker.enforcement.documents.step import extract_state_from_messages, marker_spans
from worker.files.safe_io import made, opened, read
from worker.files.session_fence import FencedPlace, Place
from worker.files.template import render

log = structlog.get_logger()

STATUS, RULES = "status.json", "CLAUDE.md"
#: Largest status.json, context file and number of context files that are read.
_MAX_STATUS, _MAX_CONTEXT, _MAX_CONTEXTS = 2**20, 64 * 2**10, 20


#: An object's members in lines, as ``indent=2`` would have them: that takes three times as long.
_IN_LINES = json.JSONEncoder(ensure_ascii=False, separators=(",\n  ", ": "))

#: Path in the session's folder, inode, size, times of modification and of change; zeros where there is none.
_Identity = tuple[str, int, int, int, int]


@dataclass(frozen=True, slots=True)
class _Version:
    """What was prepared: the turn, and what was written or read for it, as it was left."""

    turn_id: str
    files: tuple[_Identity, ...]

    def holds(self, session: int) -> bool:
        """Whether all of it still is as it was left."""
        return all(_identity(file[0], session) == file for file in self.files)


class Answer(Protocol):
    """An accepted answer: ``worker.turns.transitions.moves.Answer`` is one."""

    @property
    def response(self) -> str:
        """The text."""
        ...

    @property
    def step(self) -> str:
        """The step it names, or ``unknown``."""
        ...

    @property
    def step_source(self) -> str:
        """Where the step comes from: ``marker``, ``inferred`` or ``unknown``."""
        ...


def prepare(holder: FencedPlace, turn: Turn, root: Path, template: str, *, tools: bool = True) -> None:
    """Bring a session's folder up to date for a run; what the session is called and was asked first stays.

    A turn's further attempts find what this process wrote for its first one: then nothing is written, unless somebody
    changed a file since.

    Args:
        holder: writes in the session's folder, as long as nobody held it later.
        turn: the turn that is about to run.
        root: the project the agent works in (HELIX_ROOT).
        template: the text of CLAUDE.md's template; empty: there is to be no CLAUDE.md.
        tools: the agent has tools, and can read and write files.

    Raises:
        OSError: it cannot be written; also when there is a link in a file's place.
        SettingsError: the template cannot be filled in.
    """
    workdir, session = holder.path, holder.session
    version = _versions.get(workdir)
    if version and version.turn_id == turn.turn_id and version.holds(session):
        return
    old = {} if holder.new else _read_status(session)
    status = {**_new_status(turn), **old, **_turn_facts(turn)}
    with made(session, "input", missing=holder.new) as folder:
        if "original_request" not in old or not (workdir / "input" / "request.md").exists():
            holder.replace("request.md", _bytes(str(status["original_request"])), folder, durable=False)
        for image in turn.request.images:
            holder.replace(image.name, image.content, folder, durable=False)
    with made(session, "context", missing=holder.new) as folder:
        holder.replace("messages.json", _in_lines(turn.request.messages), folder, durable=False)
        laid = _identity("context", session)  # before its names are read: what comes later changes it
        documents = [] if holder.new else _documents(folder)
        context = _contents(documents, folder)
    with contextlib.suppress(FileExistsError):
        os.mkdir("logs", dir_fd=session)
    if template:
        text = render(
            session_id=str(status["session_id"]),
            created_at=str(status["created_at"]),
            original_request=str(status["original_request"]),
            workdir=workdir,
            root=root,
            template=template,
            tools=tools,
            context=context,
        )
        holder.replace(RULES, _bytes(text), session, durable=False)
    elif not holder.new:
        holder.remove(RULES, session)
    if status != old:
        _write_status(holder, status)
    names = (STATUS, RULES, "input/request.md", "context/messages.json", *(f"context/{name}" for name in documents))
    _versions.put(workdir, _Version(turn.turn_id, (laid, *(_identity(name, session) for name in names))))


def accept(holder: Place, turn: Turn, answer: Answer) -> None:
    """Note an accepted answer: its step for observability, and which agent session the next turn continues.

    Doing it again changes nothing but the time. Called before ``.done`` is written: that is the last of an acceptance.

    Raises:
        OSError: it cannot be written.
    """
    answered = [*turn.request.messages, {"role": "assistant", "content": answer.response}]
    status = {**_new_status(turn), **({} if holder.new else _read_status(holder.session))}
    status |= {
        **_turn_facts(turn),
        "step": answer.step,
        "step_source": answer.step_source,
        "agent_session": turn.agent_session,
        "conversation": conversation_digest(answered),
    }
    _write_status(holder, status)
    if isinstance(holder, FencedPlace):
        _tidy(holder, turn.agent_session)


def continued_session(workdir: Path, messages: Sequence[Mapping[str, str]]) -> str:
    """The agent session of the last accepted answer, if this conversation goes on from it; else empty.

    An edited or regenerated message is not a continuation: the conversation before it is not the one that was accepted.
    """
    try:
        with opened(workdir) as session:
            status = _read_status(session)
    except OSError:
        return ""
    if not messages[1:] or status.get("conversation") != conversation_digest(messages[:-1]):
        return ""
    return str(status.get("agent_session") or "")


def conversation_digest(messages: Sequence[Mapping[str, str]]) -> str:
    """A digest of who said what. Step markers and blanks around a message do not count: chats do not send them back."""
    said = ((m["role"], _said(m.get("content", ""))) for m in messages if m.get("role") in {"user", "assistant"})
    # As json.dumps with indent=2 writes them, which takes four times as long: status.json of older versions goes on.
    pairs = ",\n".join(f'  [\n    "{role}",\n    {encode_basestring(text)}\n  ]' for role, text in said)
    return hashlib.sha256(_bytes(f"[\n{pairs}\n]\n" if pairs else "[]\n")).hexdigest()


def _said(content: str) -> str:
    """A message as a page of Open WebUI draws it, which is what it sends back."""
    return page_text(content, marker_spans(content)).strip()


def read_status(workdir: Path) -> dict[str, Any]:
    """A session's status.json, old ones too; empty when there is none or it is damaged."""
    try:
        with opened(workdir) as session:
            return _read_status(session)
    except OSError:
        return {}


class _Versions:
    """What this process last prepared in each session's folder: for which turn, and how the files were then."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: dict[Path, _Version] = {}

    def get(self, workdir: Path) -> _Version | None:
        return self._kept.get(workdir)

    def put(self, workdir: Path, version: _Version) -> None:
        """Remember; the one that was put longest ago goes when there are too many."""
        self._kept.pop(workdir, None)
        self._kept[workdir] = version
        while len(self._kept) > self._most:
            self._kept.pop(next(iter(self._kept)), None)


_versions = _Versions(most=1024)


def _identity(path: str, session: int) -> _Identity:
    """A file's or folder's identity. The time of its last change of any kind cannot be set by who writes it."""
    try:
        facts = os.stat(path, dir_fd=session, follow_symlinks=False)
    except OSError:
        return path, 0, 0, 0, 0
    return path, facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns


def _turn_facts(turn: Turn) -> dict[str, Any]:
    return {"turn_id": turn.turn_id, "message_count": len(turn.request.messages), "flow": turn.flow} | (
        {"prompt_template": turn.request.template} if turn.request.template else {}
    )


def _new_status(turn: Turn) -> dict[str, Any]:
    now = _now()
    return {
        "session_id": turn.request.session_id,
        "status": "active",
        "step": "unknown",
        "created_at": now,
        "updated_at": now,
        "original_request": extract_state_from_messages(turn.request.messages)["original_request"],
        "project_name": None,
        "conversation_id": turn.request.metadata.get("conversation_id"),
    }


def _read_status(session: int) -> dict[str, Any]:
    try:
        status = json.loads(read(STATUS, session, _MAX_STATUS))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        log.warning("session.status_unreadable", reason=str(error))
        return {}
    return status if isinstance(status, dict) else {}


def _write_status(holder: Place, status: Mapping[str, Any]) -> None:
    text = _IN_LINES.encode({**status, "updated_at": _now()})
    holder.replace(STATUS, _bytes(f"{{\n  {text[1:-1]}\n}}\n"), holder.session, durable=False)


def _documents(folder: int) -> list[str]:
    """The names of the Markdown documents in ``context/`` that are read."""
    return sorted(name for name in os.listdir(folder) if name.endswith(".md"))[:_MAX_CONTEXTS]


def _contents(names: Sequence[str], folder: int) -> dict[str, str]:
    """What the documents say, by name; those that cannot be read are left out, and logged."""
    found: dict[str, str] = {}
    for name in names:
        try:
            found[name.removesuffix(".md")] = read(name, folder, _MAX_CONTEXT).decode("utf-8", "replace")
        except OSError as error:
            log.warning("session.context_left_out", file=name, reason=str(error))
    return found


def _tidy(holder: Place, agent_session: str) -> None:
    """Drop the transcripts that nobody can continue from any more, and what killed workers left of agents' HOMEs."""
    with contextlib.suppress(FileNotFoundError), opened("agent", holder.session) as folder:
        for name in os.listdir(folder):  # noqa: PTH208 - a descriptor
            transcript = not stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
            if not transcript or (agent_session and Path(name).stem != agent_session):
                holder.remove(name, folder)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _in_lines(messages: Sequence[Mapping[str, str]]) -> bytes:
    """The conversation as JSON, a message in each line."""
    lines = ",\n  ".join(json.dumps(message, ensure_ascii=False) for message in messages)
    return _bytes(f"[\n  {lines}\n]\n")


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "replace")
