"""Port for the storage of session files when workers share no folder."""

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
    """Raised when the stored files of a session are temporarily unreachable."""

    code = "files_unavailable"


class SessionFilesGone(SessionFilesError):
    """Raised when the stored files of a session are missing or damaged."""

    code = "session_lost"


class SessionFilesTooLarge(SessionFilesError):
    """Raised when a session has more files than can be stored."""

    code = "session_too_large"


class StoredFiles(Protocol):
    """Reads the stored files of one session. Paths are relative to the session's folder."""

    @property
    def sizes(self) -> Mapping[str, int]:
        """Return the size of each stored file in bytes, by path."""

    def open(self, path: str) -> tuple[int, int]:
        """Open a stored file and return its file descriptor and size. Raises ``OSError`` or ``SessionFilesError``."""


@dataclass(slots=True)
class ClearedFiles:
    """The result of a cleanup of stored session files: the removed amounts, and the problems."""

    objects: int
    size: int
    problems: list[str]


class StoredSessions(Protocol):
    """Reads and cleans up the stored files of all sessions. Methods raise ``SessionFilesError``."""

    async def read(self, session_id: str) -> StoredFiles:
        """Return the stored files of a session, possibly without any file."""

    async def clear(self, *, now: float, session_seconds: float, dry_run: bool) -> ClearedFiles:
        """Delete unneeded stored files, and the files of sessions unused for ``session_seconds`` (0: never)."""


def find_session_files(files: str) -> Any:
    """Load the plug-in that the setting HELIX_FILES names, or return None if the setting is empty.

    The plug-in has ``read(store)`` for a ``StoredSessions``, and ``work(settings, ledger, threads)`` for workers.
    """
    if not files:
        return None
    try:
        return load_plugin(SESSION_FILES, files.partition(":")[0])
    except UnusablePlugin as error:
        raise SettingsError([f"HELIX_FILES: {error}"]) from error
