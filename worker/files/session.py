"""Writes the files of a session's folder that agents and people read (ADR-034, docs/sessions.md)."""

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

from api_client.contract.step_marker import strip_all_markers
from api_client.contract.turn import Turn
from api_client.contract.turn_labels import listed_labels
from api_client.turns.record.transition import Answer
from worker.enforcement.documents.step import extract_state_from_messages, marker_spans
from worker.files.recent_entries import RecentEntries
from worker.files.safe_io import ensure_folder, open_folder, read_file
from worker.files.session_fence import FencedSessionFolder, SessionFolder
from worker.files.session_version import PreparedSession, identify_file
from worker.files.template import Identity, SessionRules, render_rules

log = structlog.get_logger()

STATUS, RULES = "status.json", "CLAUDE.md"
#: Largest status.json, largest context file, most context files.
_MAX_STATUS, _MAX_CONTEXT, _MAX_CONTEXTS = 2**20, 64 * 2**10, 20


#: Roles of messages that instruct the agent. The result of a tool is none: nobody vouches for its text.
INSTRUCTION_ROLES = frozenset({"system", "developer"})
_IN_LINES = json.JSONEncoder(ensure_ascii=False, separators=(",\n  ", ": "))


def prepare_session(
    holder: FencedSessionFolder, turn: Turn, root: Path, template: str, *, tools: bool = True, skills: str = ""
) -> None:
    """Write the files that an agent needs into a session's folder, such as CLAUDE.md, the history and images.

    Writes nothing if this process prepared the folder for the same turn and no file changed since.

    Args:
        template: text of the template for CLAUDE.md; empty: no CLAUDE.md.
        tools: True if the agent can read and write files.
        skills: where the agent's skills are, as the template shows it.

    Raises:
        OSError: a file cannot be written, or a link is in its place.
        SettingsError: the template cannot be rendered.
    """
    workdir, session = holder.path, holder.session
    version = _versions.get(workdir)
    if version and version.matches_turn(turn, root, template, skills, tools=tools) and version.is_unchanged(session):
        return
    old = {} if holder.new else _read_status(session)
    status = _merge_status(turn, old)
    with ensure_folder(session, "input", missing=holder.new) as folder:
        if old.get("original_request") != status["original_request"] or not identify_file("request.md", folder)[1]:
            holder.replace_file("request.md", _bytes(str(status["original_request"])), folder, durable=False)
        for image in turn.request.images:
            holder.replace_file(image.name, image.content, folder, durable=False)
    with ensure_folder(session, "context", missing=holder.new) as folder:
        lines = ",\n  ".join(json.dumps(message, ensure_ascii=False) for message in turn.request.messages)
        holder.replace_file("messages.json", _bytes(f"[\n  {lines}\n]\n"), folder, durable=False)
        laid = identify_file("context", session)  # before the listing: later additions count as changes
        there = [] if holder.new else sorted(name for name in os.listdir(folder) if name.endswith(".md"))  # noqa: PTH208
        documents = tuple(map(identify_file, there[:_MAX_CONTEXTS], repeat(folder)))
        rules = SessionRules(
            template=template,
            tools=tools,
            root=root,
            skills=skills,
            session_id=str(status["session_id"]),
            created_at=str(status["created_at"]),
            original_request=str(status["original_request"]),
            documents=documents,
        )
        digest = (
            version.digest if version and version.has_rules(rules, session) else _write_rules(holder, rules, folder)
        )
    if status != old:
        _write_status(holder, status)
    own = map(identify_file, (STATUS, "input/request.md", "context/messages.json"), repeat(session))
    files = (laid, *own, *((f"context/{each[0]}", *each[1:]) for each in documents))
    prepared = PreparedSession(
        turn_id=turn.turn_id, status=status, rules=rules, digest=digest, file=identify_file(RULES, session), files=files
    )
    _versions.put(workdir, prepared)


def _write_rules(holder: FencedSessionFolder, rules: SessionRules, context: int) -> bytes:
    if not rules.template:
        if not holder.new:
            holder.remove_entry(RULES, holder.session)
        return b""
    content = _bytes(render_rules(rules, holder.path, _read_documents(rules.documents, context)))
    holder.replace_file(RULES, content, holder.session, durable=False)
    return hashlib.sha256(content).digest()


def record_acceptance(holder: SessionFolder, turn: Turn, answer: Answer, *, agent_session: str) -> None:
    """Record an accepted answer in status.json, with the agent session that the next turn continues.

    Idempotent. Must run before ``.done`` is written.
    """
    answered = [*turn.request.messages, {"role": "assistant", "content": answer.response}]
    old: Mapping[str, Any] = {}
    if not holder.new:
        # Use the status in memory unless somebody changed the file.
        version = _versions.get(holder.path)
        known = version and identify_file(STATUS, holder.session) in version.files
        old = version.status if version and known else _read_status(holder.session)
    status = _merge_status(turn, old) | {
        "step": answer.step,
        "step_source": answer.step_source,
        "agent_session": agent_session,
        "conversation": digest_conversation(answered),
        "instructions": _digest_instructions(answered),
    }
    _write_status(holder, status)
    if isinstance(holder, FencedSessionFolder):
        _remove_old_agent_files(holder, agent_session)


def find_agent_session(workdir: Path, messages: Sequence[Mapping[str, str]]) -> tuple[str, str]:
    """Return the agent session to continue, and what it knows: ``history``, or ``dialogue`` under other instructions.

    Both are empty if the messages do not continue the last answer.
    """
    try:
        with open_folder(workdir) as session:
            status = _read_status(session)
    except OSError:
        return "", ""
    if not messages[1:] or status.get("conversation") != digest_conversation(messages[:-1]):
        return "", ""
    agent_session, instructions = str(status.get("agent_session") or ""), _digest_instructions(messages[:-1])
    return agent_session, "history" if instructions == status.get("instructions", "") else "dialogue"


def _digest_instructions(messages: Sequence[Mapping[str, str]]) -> str:
    """Return a hash of the messages that instruct the agent, or "" if there are none."""
    given = [
        [message["role"], message.get("content")] for message in messages if message.get("role") in INSTRUCTION_ROLES
    ]
    return hashlib.sha256(_bytes(json.dumps(given))).hexdigest() if given else ""


def digest_conversation(messages: Sequence[Mapping[str, str]]) -> str:
    """Return a hash of a conversation's messages that ignores step markers and surrounding whitespace."""
    said: list[str] = []
    for message in messages:
        if message.get("role") in {"user", "assistant"}:
            content = message.get("content", "")
            # Open WebUI sends back the text of its page.
            text = strip_all_markers(content, marker_spans(content)).strip()
            said.append(f'  [\n    "{message["role"]}",\n    {encode_basestring(text)}\n  ]')
    pairs = ",\n".join(said)
    return hashlib.sha256(_bytes(f"[\n{pairs}\n]\n" if pairs else "[]\n")).hexdigest()


def read_status(workdir: Path) -> dict[str, Any]:
    """Return the content of a session's status.json, or an empty dict if the file is missing or damaged."""
    try:
        with open_folder(workdir) as session:
            return _read_status(session)
    except OSError:
        return {}


_versions = RecentEntries[Path, PreparedSession](most=256)


def _merge_status(turn: Turn, old: Mapping[str, Any]) -> dict[str, Any]:
    """Return the status of a turn's session: the stored values, changed as the turn says, and completed."""
    now = _now()
    # A user who edits the first message withdraws it; later answers must not see it.
    first = extract_state_from_messages(turn.request.messages)["original_request"]
    mays = {"prompt_template": turn.request.template, "original_request": first}
    return {
        "session_id": turn.request.session_id,
        "status": "active",
        "step": "unknown",
        "created_at": now,
        "updated_at": now,
        "original_request": first,
        "project_name": None,
        "conversation_id": turn.request.metadata.get("conversation_id"),
        **old,
        "turn_id": turn.turn_id,
        "message_count": len(turn.request.messages),
        **listed_labels(turn.request.labels),
        **{name: value for name, value in mays.items() if value},
    }


def _read_status(session: int) -> dict[str, Any]:
    try:
        status = json.loads(read_file(STATUS, session, _MAX_STATUS))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        log.warning("session.status_unreadable", reason=str(error))
        return {}
    return status if isinstance(status, dict) else {}


def _write_status(holder: SessionFolder, status: Mapping[str, Any]) -> None:
    text = _IN_LINES.encode({**status, "updated_at": _now()})
    holder.replace_file(STATUS, _bytes(f"{{\n  {text[1:-1]}\n}}\n"), holder.session, durable=False)


def _read_documents(documents: Sequence[Identity], folder: int) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, *_ in documents:
        try:
            found[name.removesuffix(".md")] = read_file(name, folder, _MAX_CONTEXT).decode("utf-8", "replace")
        except OSError as error:
            log.warning("session.context_left_out", file=name, reason=str(error))
    return found


KEPT = "warm"


def _remove_old_agent_files(holder: SessionFolder, agent_session: str) -> None:
    with contextlib.suppress(FileNotFoundError), open_folder("agent", holder.session) as folder:
        for name in os.listdir(folder):  # noqa: PTH208 - a descriptor
            if name == KEPT:
                continue  # of a warm agent
            transcript = not stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
            if not transcript or (agent_session and Path(name).stem != agent_session):
                holder.remove_entry(name, folder)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "replace")
