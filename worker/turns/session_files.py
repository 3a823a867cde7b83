"""Where a session's files lie between turns: in a folder that all workers share, or where a plug-in stores them."""

from __future__ import annotations

from typing import Protocol

from api_client.contract.session_files import find_session_files
from api_client.contract.settings import Settings
from api_client.turns.record.ledger import Ledger
from worker.turns.leases.lease import Lease
from worker.turns.loops.threads import Threads


class SessionFiles(Protocol):
    """Loads a session's files when a worker takes a turn, and saves them before a transition is stored."""

    async def restore(self, lease: Lease) -> None:
        """Restore the session's folder as of the session's last stored transition.

        Raises:
            Fenced: another worker has the turn.
            OSError: the folder cannot be written.
            SessionFilesError: the files cannot be fetched.
        """
        ...

    async def save(self, lease: Lease, *, bounded: bool = True) -> str:
        """Save the folder's files; return the reference to store with the transition, or an empty string.

        If ``bounded``, size limits apply and the call waits for an unavailable store as long as the lease
        allows.

        Raises:
            SessionFilesTooLarge: too many files, or too many bytes if ``bounded``.
            OSError, SessionFilesAway: see ``restore``.
        """
        ...

    def trouble(self) -> str:
        """Return why sessions cannot be loaded or saved now; empty if they can. May block after an error."""
        ...


class SharedFolder:
    """Session files in a HELIX_ROOT shared by all workers."""

    async def restore(self, _lease: Lease) -> None:
        """Do nothing: the folder is shared."""

    async def save(self, _lease: Lease, *, bounded: bool = True) -> str:
        """Do nothing: the folder is shared."""
        return ""

    def trouble(self) -> str:
        """Return an empty string: the host check covers the folder."""
        return ""


def session_files(settings: Settings, ledger: Ledger, threads: Threads) -> SessionFiles:
    """Return where these settings keep sessions' files. Raise ``SettingsError`` if it is unusable."""
    plugin = find_session_files(settings.files)
    files: SessionFiles = plugin.work(settings, ledger, threads) if plugin else SharedFolder()
    return files
