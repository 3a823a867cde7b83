"""Port: where the files of sessions lie between turns if workers share no folder. A plug-in implements it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from api_client.contract.errors import HelixError, SettingsError
from api_client.contract.plugins import SESSION_FILES, UnusablePlugin, load_plugin


class SessionFilesError(HelixError):
    """Raised when the files of a session cannot be fetched or stored."""

    code = "files_unavailable"


class SessionFilesAway(SessionFilesError):
    """Raised when the files cannot be reached now."""

    code = "files_unavailable"


class SessionFilesGone(SessionFilesError):
    """Raised when stored files are missing or damaged."""

    code = "session_lost"


class SessionFilesTooLarge(SessionFilesError):
    """Raised when a session has more files than can be stored."""

    code = "session_too_large"


class StoredFiles(Protocol):
    """The files of one session as they were stored last. Paths are relative to the session's folder."""

    @property
    def sizes(self) -> Mapping[str, int]:
        """Return the size of each file in bytes, by path."""
        ...

    def open(self, path: str) -> tuple[int, int]:
        """Return a file descriptor and the size. Raise ``OSError`` or ``SessionFilesError``."""
        ...


@dataclass(slots=True)
class ClearedFiles:
    """What was removed, or would be: objects and their bytes. ``problems``: what was left alone, and why."""

    objects: int
    size: int
    problems: list[str]


class StoredSessions(Protocol):
    """Reads and clears the stored files of all sessions, for relays and operators. Raises ``SessionFilesError``."""

    async def read(self, session_id: str) -> StoredFiles:
        """Return the files of a session, none if nothing was stored."""
        ...

    async def clear(self, *, now: float, session_seconds: float, dry_run: bool) -> ClearedFiles:
        """Remove what nobody needs, and sessions without a turn for ``session_seconds``; 0: never."""
        ...


def find_session_files(files: str) -> Any:
    """Return the plug-in for ``HELIX_FILES``; None if workers share HELIX_ROOT.

    It has ``read(store)`` for a ``StoredSessions``, and ``work(settings, ledger, threads)`` for what workers do.
    """
    if not files:
        return None
    try:
        return load_plugin(SESSION_FILES, files.partition(":")[0])
    except UnusablePlugin as error:
        raise SettingsError([f"HELIX_FILES: {error}"]) from error
