"""The HOME of one run, and the state kept for the session's next run.

A complete run's declared state is kept as ``agent/<uuid>.zip``, and later runs start with a copy.
"""

from __future__ import annotations

import io
import json
import stat
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from worker.files.folder_trees import walk_tree
from worker.files.safe_io import open_folder, read_file
from worker.runners.agent_sessions import discard_session, find_continued_session, session_file
from worker.runners.agent_sessions import keep_session as keep_session
from worker.runners.base import Order

#: Largest state that is kept, in bytes, both unpacked and packed.
MAX_STATE = 128 * 2**20
#: File in the archive with our own notes.
_NOTES = "helix-notes.json"
_ENDING = ".zip"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptSession:
    """The saved session of an agent, which the next run continues.

    Attributes:
        agent_session: our name of the session; empty for a fresh start. session: the agent's own name of it.
        knows: what the session holds: nothing, ``dialogue``, ``history``, or also the user's ``message``.
        spent: its cost so far, in US dollars.
    """

    agent_session: str = ""
    session: str = ""
    knows: str = ""
    spent: float = 0.0
    content: bytes = b""


def find_kept_session(order: Order) -> KeptSession:
    """Return the saved agent session that a run continues, or an empty session to start afresh."""
    if found := find_continued_session(order, _ENDING, MAX_STATE, _unpack_notes):
        return replace(found[2], agent_session=found[0], knows=found[1])
    return KeptSession()


def _unpack_notes(content: bytes) -> KeptSession:
    """Read our metadata from the archive of a saved session. Raises ``ValueError`` if the archive is damaged."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as packed:
            notes = json.loads(packed.read(_NOTES))
        return KeptSession(session=str(notes["session"]), spent=float(notes["spent"]), content=content)
    except (KeyError, TypeError, zipfile.BadZipFile) as error:
        raise ValueError(f"it is damaged: {error!r}") from error


def create_home(home: Path, kept: KeptSession, files: Mapping[str, str]) -> None:
    """Create a run's HOME folder from the saved state and from our own files, which take precedence.

    Raises ``OSError``, also for a damaged archive.
    """
    (home / "tmp").mkdir(parents=True)
    if kept.content:
        try:
            with zipfile.ZipFile(io.BytesIO(kept.content)) as packed:
                packed.extractall(home, [name for name in packed.namelist() if name != _NOTES])
        except (zipfile.BadZipFile, RuntimeError, NotImplementedError) as error:
            raise OSError(f"the kept session is damaged: {error}") from error
    for name, text in files.items():
        path = home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def keep_state(order: Order, home: Path, state: Sequence[str], session: str, spent: float) -> str:
    """Save the agent session of a complete run and return its name, or an empty string if saving failed."""
    return keep_session(order, _ENDING, lambda: _pack_state(home, state, {"session": session, "spent": spent}))


def forget_session(order: Order, kept: KeptSession) -> None:
    """Discard a saved session that the agent rejected, so that the next run starts afresh."""
    if kept.agent_session:
        discard_session(session_file(order, kept.agent_session, _ENDING))


def _pack_state(home: Path, state: Sequence[str], notes: Mapping[str, Any]) -> bytes:
    packed, size = io.BytesIO(), 0
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, compresslevel=1, strict_timestamps=False) as archive:
        archive.writestr(_NOTES, json.dumps(notes))
        for path in _state_files(home, state):
            with open_folder(path.parent) as folder:
                content = read_file(path.name, folder, MAX_STATE)
            size += len(content)
            if size > MAX_STATE:
                raise ValueError(f"its state has more than {MAX_STATE} bytes")
            archive.writestr(str(path.relative_to(home)), content)
    return packed.getvalue()


def _state_files(home: Path, state: Sequence[str]) -> Iterator[Path]:
    root = home.resolve()
    for name in state:
        start = root / name
        if start.resolve() != start:
            continue
        if start.is_file():
            yield start
        for folder, _, files in walk_tree(start):
            for file in sorted(files):
                path = Path(folder) / file
                if stat.S_ISREG(path.lstat().st_mode):
                    yield path
