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
import functools
import hashlib
import json
import os
import re
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import repeat
from json.encoder import encode_basestring
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog

from api_client.contract.issues import SettingsError
from api_client.contract.keys import NONE, SHIPPED, session_directory, shipped
from api_client.contract.marker import page_text
from api_client.contract.turn import Turn
from api_client.turns.record.encoding import Answer
from worker.enforcement.documents.splice import extract_state_from_messages, marker_spans
from worker.files import recording
from worker.files.safe_io import made, opened, read
from worker.files.workspace import FencedPlace, Place, Recent

if TYPE_CHECKING:
    from jinja2 import Environment, Template

# CLAUDE.md of a consultant session from its template (ADR-034, phase 2).

#: Longest original request that is shown in full, in characters; input/request.md has all of it.
_MAX_REQUEST = 20_000


def render(
    *,
    session_id: str,
    created_at: str,
    original_request: str,
    workdir: Path,
    root: Path,
    context: Mapping[str, str],
    template: str,
    tools: bool = True,
    skills: bool = False,
) -> str:
    """The agent's instructions about its session; ``template`` is the template's text, ``tools``: the agent has tools.

    ``skills``: the project has some (``has_skills``).

    Users' texts stand in code blocks: the Claude CLI would read ``@path`` in the open as "put that file in here".

    Raises:
        SettingsError: the template cannot be filled in.
    """
    from jinja2 import TemplateError  # 2 MB, not needed where no agent has a folder

    try:
        return _template(template).render(
            tools=tools,
            session_id=session_id,
            created_at=created_at,
            original_request=original_request[:_MAX_REQUEST],
            workdir=workdir,
            root=root,
            skills=root / "skills" if skills else None,
            context=dict(context),
        )
    except TemplateError as error:
        raise SettingsError([f"prompt_template: {type(error).__name__}: {error}"]) from error


def has_skills(root: Path) -> bool:
    """Return whether the project has skills that its agents are to know of."""
    return os.path.isdir(f"{root}/skills")  # noqa: PTH112 - asked once a run


def text_of(name: str, locale: str) -> str:
    """The text of the template that a setting names (a path, ``de``, ``en``), in the turn's language without one.

    Raises:
        SettingsError: the file cannot be read.
    """
    if name == NONE:
        return ""
    if not name or name in SHIPPED:
        return shipped(name or locale)
    try:
        return Path(name).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise SettingsError([f"prompt_template {name}: cannot be read ({error})"]) from None


def check(name: str) -> None:
    """Fill in the template that a setting names, for a session that does not exist. Those we ship are tested.

    Raises:
        SettingsError: it cannot be read or filled in.
    """
    if name and name not in SHIPPED and (text := text_of(name, "en")):
        place = Path("/nowhere")
        for tools in (True, False):
            render(
                session_id="s", created_at="", original_request="", workdir=place, root=place, context={"a": "b"},
                template=text, tools=tools,
            )  # fmt: skip


def fenced(text: str) -> str:
    """A text as a code block that nothing in it can end."""
    fence = "`" * (max(map(len, re.findall(r"`{3,}", text)), default=2) + 1)
    return f"{fence}text\n{text.rstrip()}\n{fence}"


@functools.cache
def _environment() -> Environment:
    from jinja2 import Environment, StrictUndefined

    # Markdown for an agent, not HTML: what protects here is the fence.
    environment = Environment(
        undefined=StrictUndefined,
        autoescape=False,  # noqa: S701
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["fenced"] = fenced
    return environment


@functools.lru_cache(maxsize=32)
def _template(text: str) -> Template:
    return _environment().from_string(text)


# The last preparation of a session's folder by a worker process: the same version is prepared once.

#: Path, inode, size, times of modification and of change; zeros where there is no such file or folder.
Identity = tuple[str, int, int, int, int]


def identity(path: str, folder: int) -> Identity:
    """A file's or folder's identity. The time of its last change of any kind cannot be set by who writes it."""
    try:
        facts = os.stat(path, dir_fd=folder, follow_symlinks=False)
    except OSError:
        return path, 0, 0, 0, 0
    return path, facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRules:
    """All that decides what CLAUDE.md says. While it is the same, the session's version is, and nothing is rendered.

    Attributes:
        template: the template's text; empty: there is to be no CLAUDE.md. tools: the agent has tools.
        root: the project the agent works in. skills: it has skills.
        session_id, created_at, original_request: as in the session's status.json.
        documents: those of ``context/``, by name in it, as they were before they were read.
    """

    template: str
    tools: bool
    root: Path
    skills: bool
    session_id: str
    created_at: str
    original_request: str
    documents: tuple[Identity, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """The result of a preparation.

    Attributes:
        turn_id: the turn. status: its status.json.
        rules: what CLAUDE.md says. digest: the SHA-256 of its content; empty for none.
        file: its identity. files: those of everything else that was written or read, by path in the session's folder.
    """

    turn_id: str
    status: Mapping[str, Any]
    rules: SessionRules
    digest: bytes
    file: Identity
    files: tuple[Identity, ...]

    def serves(self, turn: Turn, root: Path, template: str, *, tools: bool) -> bool:
        """Return whether it was prepared for this turn, and with these instructions: another model may have its own."""
        rules = self.rules
        same = (rules.template, rules.tools, rules.root) == (template, tools, root)
        return self.turn_id == turn.turn_id and same and rules.skills == has_skills(root)

    def holds(self, session: int) -> bool:
        """Return whether all of it still is as it was left."""
        return all(identity(file[0], session) == file for file in (self.file, *self.files))

    def says(self, rules: SessionRules, session: int) -> bool:
        """Return whether CLAUDE.md says this already. Compares the content: another process may have written it."""
        if self.rules != rules:
            return False
        try:
            return hashlib.sha256(read(self.file[0], session, self.file[2])).digest() == self.digest
        except FileNotFoundError:
            return not self.digest
        except OSError:  # a link, a folder, a file that grew
            return False


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
        turn_id=turn.turn_id,
        status=status,
        rules=rules,
        digest=digest,
        file=identity(RULES, session),
        files=files,
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
    # As json.dumps with indent=2 writes them, which takes four times as long: status.json of older versions goes on.
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
    first = extract_state_from_messages(turn.request.messages)["original_request"] if not turn.request.phase else ""
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


# Clearing up sessions' folders: which are old enough, and removing them so that a kill half-way leaves only less.
#
# Whether a session is at work only the store knows; it is asked again after a folder was put aside and before it goes.

#: A folder that was put aside to be removed. No session's folder begins with a dot.
GONE = ".gone-"


@dataclass(frozen=True, slots=True)
class Old:
    """A folder that is old enough to go. ``what`` is session, attempt or gone (what a killed clearing left)."""

    what: str
    path: Path
    session_id: str
    size: int


def old_folders(
    sessions_dir: Path, *, now: float, session_seconds: float, attempt_seconds: float, live: Callable[[str], bool]
) -> Iterator[Old]:
    """Folders not written to for this long: whole sessions and deliveries (0: never). None of a live session.

    A folder of an unknown session is left alone.
    """
    for path in folders_in(sessions_dir.resolve()):
        if path.name.startswith(GONE):
            yield Old("gone", path, "", size_of(path))
            continue
        session_id = session_id_of(path)
        if session_id is None or live(session_id):
            continue
        if session_seconds and now - last_written(path) > session_seconds:
            yield Old("session", path, session_id, size_of(path))
        elif attempt_seconds:
            for delivery in folders_in(path / "attempts"):
                if now - last_written(delivery) > attempt_seconds:
                    yield Old("attempt", delivery, session_id, size_of(delivery))


def remove(old: Old, live: Callable[[str], bool]) -> bool:
    """Remove a folder; False when its session came back to work meanwhile. Nothing outside it is touched.

    Raises:
        OSError: it cannot be removed; what is left is found again by the next clearing.
    """
    if old.what == "gone":
        shutil.rmtree(old.path)
        return True
    recording.forget(old.path)
    aside = (old.path.parent if old.what == "session" else old.path.parents[2]) / f"{GONE}{secrets.token_hex(6)}"
    old.path.rename(aside)
    # Unless the session has already begun a new one: then what was put aside was old enough to go.
    if live(old.session_id) and not old.path.exists():
        aside.rename(old.path)
        return False
    shutil.rmtree(aside)
    return True


def session_id_of(path: Path) -> str | None:
    """The session whose folder this is, by its status.json; None when it does not say."""
    session_id = read_status(path).get("session_id", path.name)
    right = isinstance(session_id, str) and session_directory(path.parent, session_id) == path
    return session_id if right else None


def last_written(path: Path) -> float:
    """When a folder, or what lies directly in it, was last written to, in seconds since the epoch."""
    times = [path.stat(follow_symlinks=False).st_mtime]
    with os.scandir(path) as entries:
        times += [entry.stat(follow_symlinks=False).st_mtime for entry in entries]
    return max(times)


def size_of(path: Path) -> int:
    """Bytes of the files below a folder; links are not followed."""
    total = 0
    for folder, _, files in os.walk(path):
        for name in files:
            try:
                facts = os.lstat(os.path.join(folder, name))  # noqa: PTH118 - thousands of them
            except OSError:
                continue
            total += facts.st_size if stat.S_ISREG(facts.st_mode) else 0
    return total


def folders_in(parent: Path) -> list[Path]:
    """The folders in a folder; links are not followed."""
    if parent.is_symlink() or not parent.is_dir():
        return []
    return sorted(path for path in parent.iterdir() if path.is_dir() and not path.is_symlink())
