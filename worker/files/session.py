"""The folder of a consultant session as agents and people read it (ADR-034, docs/sessions.md)."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import repeat
from json.encoder import encode_basestring
from pathlib import Path
from typing import Any

import structlog

from api_client.contract.marker import page_text
from api_client.contract.turn import Turn
from api_client.turns.record.moves import Answer
from worker.enforcement.documents.step import extract_state_from_messages, marker_spans
from worker.files.recent import Recent
from worker.files.safe_io import made, opened, read
from worker.files.session_fence import FencedPlace, Place
from worker.files.session_version import Identity, SessionRules, Version, identity
from worker.files.template import has_skills, render

log = structlog.get_logger()

STATUS, RULES = "status.json", "CLAUDE.md"
#: Largest status.json, context file and number of context files that are read.
_MAX_STATUS, _MAX_CONTEXT, _MAX_CONTEXTS = 2**20, 64 * 2**10, 20


#: An object's members in lines, as ``indent=2`` would have them: that takes three times as long.
_IN_LINES = json.JSONEncoder(ensure_ascii=False, separators=(",\n  ", ": "))


def prepare(holder: FencedPlace, turn: Turn, root: Path, template: str, *, tools: bool = True) -> None:
    """Bring a session's folder up to date for a run. The original request is the first message of the present history.

    A turn's further attempts find what this process wrote for its first one: then nothing is written, unless somebody
    changed a file since. The session's further turns find its CLAUDE.md in the same way. ``template`` is the text of
    its template; empty: there is to be no CLAUDE.md. ``tools``: the agent can read and write files.

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
        if old.get("original_request") != status["original_request"] or not identity("request.md", folder)[1]:
            holder.replace("request.md", _bytes(str(status["original_request"])), folder, durable=False)
        for image in turn.request.images:
            holder.replace(image.name, image.content, folder, durable=False)
    with made(session, "context", missing=holder.new) as folder:
        lines = ",\n  ".join(json.dumps(message, ensure_ascii=False) for message in turn.request.messages)
        holder.replace("messages.json", _bytes(f"[\n  {lines}\n]\n"), folder, durable=False)
        laid = identity("context", session)  # before its names are read: what comes later changes it
        there = [] if holder.new else sorted(name for name in os.listdir(folder) if name.endswith(".md"))  # noqa: PTH208
        documents = tuple(map(identity, there[:_MAX_CONTEXTS], repeat(folder)))
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
    own = map(identity, (STATUS, "input/request.md", "context/messages.json"), repeat(session))
    files = (laid, *own, *((f"context/{each[0]}", *each[1:]) for each in documents))
    prepared = Version(
        turn_id=turn.turn_id, status=status, rules=rules, digest=digest, file=identity(RULES, session), files=files
    )
    _versions.put(workdir, prepared)


def _write_rules(holder: FencedPlace, rules: SessionRules, context: int) -> bytes:
    """Write CLAUDE.md, and return its digest; without a template there is to be none. Raises as ``prepare``.

    ``context`` is the folder of the documents, held open.
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
        context=_contents(rules.documents, context),
        skills=rules.skills,
    )
    content = _bytes(text)
    holder.replace(RULES, content, holder.session, durable=False)
    return hashlib.sha256(content).digest()


def accept(holder: Place, turn: Turn, answer: Answer, *, agent_session: str) -> None:
    """Note an accepted answer: its step for observability, and which ``agent_session`` the next turn continues.

    Doing it again changes nothing but the time. Called before ``.done`` is written: that is the last of an acceptance.

    Raises:
        OSError: it cannot be written.
    """
    answered = [*turn.request.messages, {"role": "assistant", "content": answer.response}]
    old: Mapping[str, Any] = {}
    if not holder.new:
        # As this process wrote it for the run, unless somebody changed it since.
        version = _versions.get(holder.path)
        known = version and identity(STATUS, holder.session) in version.files
        old = version.status if version and known else _read_status(holder.session)
    status = {**_new_status(turn), **old}
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
    said: list[str] = []
    for message in messages:
        if message.get("role") in {"user", "assistant"}:
            content = message.get("content", "")
            # As a page of Open WebUI draws it, which is what it sends back.
            text = page_text(content, marker_spans(content)).strip()
            said.append(f'  [\n    "{message["role"]}",\n    {encode_basestring(text)}\n  ]')
    # As json.dumps with indent=2 writes them, which takes four times as long: people read status.json.
    pairs = ",\n".join(said)
    return hashlib.sha256(_bytes(f"[\n{pairs}\n]\n" if pairs else "[]\n")).hexdigest()


def read_status(workdir: Path) -> dict[str, Any]:
    """A session's status.json, old ones too; empty when there is none or it is damaged."""
    try:
        with opened(workdir) as session:
            return _read_status(session)
    except OSError:
        return {}


#: What this process last prepared in each session's folder: for which turn, and how the files were then.
_versions = Recent[Path, Version](most=256)


def _turn_facts(turn: Turn) -> dict[str, Any]:
    facts = {"turn_id": turn.turn_id, "message_count": len(turn.request.messages), "flow": turn.flow}
    # A first message that its user has changed is withdrawn: no later one is answered with it in sight.
    first = extract_state_from_messages(turn.request.messages)["original_request"]
    mays = {"prompt_template": turn.request.template, "original_request": first}
    return facts | {name: value for name, value in mays.items() if value}


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


def _contents(documents: Sequence[Identity], folder: int) -> dict[str, str]:
    """Return what the documents say, by name; those that cannot be read are left out, and logged."""
    found: dict[str, str] = {}
    for name, *_ in documents:
        try:
            found[name.removesuffix(".md")] = read(name, folder, _MAX_CONTEXT).decode("utf-8", "replace")
        except OSError as error:
            log.warning("session.context_left_out", file=name, reason=str(error))
    return found


#: Below ``agent/``: the folders of agents that live from one message to the next.
KEPT = "warm"


def _tidy(holder: Place, agent_session: str) -> None:
    """Drop the transcripts that nobody can continue from any more, and what killed workers left of agents' HOMEs."""
    with contextlib.suppress(FileNotFoundError), opened("agent", holder.session) as folder:
        for name in os.listdir(folder):  # noqa: PTH208 - a descriptor
            if name == KEPT:
                continue  # of an agent that lives; the session's next one clears the rest
            transcript = not stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
            if not transcript or (agent_session and Path(name).stem != agent_session):
                holder.remove(name, folder)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "replace")
