"""The folder of a consultant session as agents and people read it (ADR-034, docs/sessions.md).

    CLAUDE.md              the agent's instructions, from a template
    status.json            the old format; new facts stand in new keys only
    input/request.md       the original request; beside it the images of the user's messages
    context/messages.json  the conversation; context/*.md are documents people lay there

Written before each run and after each accepted answer, by the holder of the turn; CLAUDE.md only where what it says
changed, or somebody changed the file. Nothing here steers a turn: the ledger does. The step comes from the agent's
answer alone.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from json.encoder import encode_basestring
from pathlib import Path
from typing import Any, Protocol

import structlog

from api_client.contract.marker import page_text
from api_client.contract.turn import Turn
from worker.enforcement.documents.step import extract_state_from_messages, marker_spans
from worker.files.recent import Recent
from worker.files.safe_io import made, opened, read
from worker.files.session_fence import FencedPlace, Place
from worker.files.session_version import Identity, SessionRules, Version, digest_of, identity
from worker.files.template import has_skills, render

log = structlog.get_logger()

STATUS, RULES = "status.json", "CLAUDE.md"
#: Largest status.json, context file and number of context files that are read.
_MAX_STATUS, _MAX_CONTEXT, _MAX_CONTEXTS = 2**20, 64 * 2**10, 20


#: An object's members in lines, as ``indent=2`` would have them: that takes three times as long.
_IN_LINES = json.JSONEncoder(ensure_ascii=False, separators=(",\n  ", ": "))


class AcceptedAnswer(Protocol):
    """An accepted answer: ``api_client.turns.record.moves.Answer`` is one."""

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
        """Return where the step comes from: ``marker``, ``inferred`` or ``unknown``."""
        ...


def prepare(holder: FencedPlace, turn: Turn, root: Path, template: str, *, tools: bool = True) -> None:
    """Bring a session's folder up to date for a run; what the session is called and was asked first stays.

    A turn's further attempts find what this process wrote for its first one: then nothing is written, unless somebody
    changed a file since. The session's further turns find its CLAUDE.md in the same way.

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
    if version and version.serves(turn, root, template, tools=tools) and version.holds(session):
        return
    old = {} if holder.new else _read_status(session)
    status = {**_new_status(turn), **old, **_turn_facts(turn)}
    with made(session, "input", missing=holder.new) as folder:
        if "original_request" not in old or not identity("request.md", folder)[1]:
            holder.replace("request.md", _bytes(str(status["original_request"])), folder, durable=False)
        for image in turn.request.images:
            holder.replace(image.name, image.content, folder, durable=False)
    with made(session, "context", missing=holder.new) as folder:
        holder.replace("messages.json", _in_lines(turn.request.messages), folder, durable=False)
        laid = identity("context", session)  # before its names are read: what comes later changes it
        documents = () if holder.new else tuple(identity(name, folder) for name in _documents(folder))
        rules = SessionRules(
            template=template,
            tools=tools,
            root=root,
            skills=has_skills(root),
            session_id=str(status["session_id"]),
            created_at=str(status["created_at"]),
            original_request=str(status["original_request"]),
            documents=documents,
        )
        digest = version.digest if version and version.says(rules, session) else _write_rules(holder, rules, folder)
    with contextlib.suppress(FileExistsError):
        os.mkdir("logs", dir_fd=session)
    if status != old:
        _write_status(holder, status)
    names = (STATUS, "input/request.md", "context/messages.json")
    files = (laid, *(identity(name, session) for name in names), *(_in_context(document) for document in documents))
    prepared = Version(
        turn_id=turn.turn_id,
        status=status,
        rules=rules,
        digest=digest,
        file=identity(RULES, session),
        files=files,
    )
    _versions.put(workdir, prepared)


def _write_rules(holder: FencedPlace, rules: SessionRules, context: int) -> bytes:
    """Write CLAUDE.md, and return its digest; without a template there is to be none.

    Args:
        holder: as for ``prepare``.
        rules: what it says.
        context: the folder of the documents, held open.

    Raises:
        OSError, SettingsError: as ``prepare``.
    """
    if not rules.template:
        if not holder.new:
            holder.remove(RULES, holder.session)
        return b""
    text = render(
        session_id=rules.session_id,
        created_at=rules.created_at,
        original_request=rules.original_request,
        workdir=holder.path,
        root=rules.root,
        template=rules.template,
        tools=rules.tools,
        context=_contents([document[0] for document in rules.documents], context),
        skills=rules.skills,
    )
    content = _bytes(text)
    holder.replace(RULES, content, holder.session, durable=False)
    return digest_of(content)


def accept(holder: Place, turn: Turn, answer: AcceptedAnswer, *, agent_session: str) -> None:
    """Note an accepted answer: its step for observability, and which ``agent_session`` the next turn continues.

    Doing it again changes nothing but the time. Called before ``.done`` is written: that is the last of an acceptance.

    Raises:
        OSError: it cannot be written.
    """
    answered = [*turn.request.messages, {"role": "assistant", "content": answer.response}]
    status = {**_new_status(turn), **({} if holder.new else _status_in(holder))}
    status |= {
        **_turn_facts(turn),
        "step": answer.step,
        "step_source": answer.step_source,
        "agent_session": agent_session,
        "conversation": conversation_digest(answered),
    }
    _write_status(holder, status)
    if isinstance(holder, FencedPlace):
        _tidy(holder, agent_session)


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


#: What this process last prepared in each session's folder: for which turn, and how the files were then.
_versions = Recent[Path, Version](most=1024)


def _in_context(document: Identity) -> Identity:
    """A document's identity, with its path in the session's folder."""
    return f"context/{document[0]}", *document[1:]


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


def _status_in(holder: Place) -> Mapping[str, Any]:
    """The session's status.json: as this process wrote it for the run, unless somebody changed it since."""
    version = _versions.get(holder.path)
    if version and identity(STATUS, holder.session) in version.files:
        return version.status
    return _read_status(holder.session)


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
    """Return what the documents say, by name; those that cannot be read are left out, and logged."""
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
