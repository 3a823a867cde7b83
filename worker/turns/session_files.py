"""Where a session's files lie between turns: in a folder that all workers share, or where a plug-in stores them."""

from __future__ import annotations

from typing import Protocol

from api_client.contract.session_files import find_session_files
from api_client.contract.settings import Settings
from api_client.turns.record.ledger import Ledger
from worker.turns.leases.lease import Lease
from worker.turns.loops.threads import Threads


class SessionFiles(Protocol):
    """Interface for loading a session's files before a turn and saving the files before a result is stored."""

    async def restore_files(self, lease: Lease) -> None:
        """Restore the session's folder to its state at the session's last stored transition.

        Raises:
            Fenced: another worker has the turn.
            OSError: the folder cannot be written.
            SessionFilesError: the files cannot be fetched.
        """
        ...

    async def save_files(self, lease: Lease, *, bounded: bool = True) -> str:
        """Save the files of the session's folder. Return a reference to store with the transition, or "".

        If ``bounded``, size limits apply and the call waits for an unavailable store as long as the lease
        allows.

        Raises:
            SessionFilesTooLarge: too many files, or too many bytes if ``bounded``.
            OSError, SessionFilesAway: see ``restore``.
        """
        ...

    def find_trouble(self) -> str:
        """Return why session files cannot be loaded or saved now, or an empty string. May block after an error."""
        ...


class SharedFolder:
    """Keeps session files in a folder that all workers share, so that nothing must be loaded or saved."""

    async def restore_files(self, _lease: Lease) -> None:
        """Do nothing, because all workers share the folder."""

    async def save_files(self, _lease: Lease, *, bounded: bool = True) -> str:
        """Return an empty reference, because all workers share the folder."""
        return ""

    def find_trouble(self) -> str:
        """Return an empty string, because the machine's health check covers the folder."""
        return ""


def create_session_files(settings: Settings, ledger: Ledger, threads: Threads) -> SessionFiles:
    """Create the storage of session files that the settings select. Raises ``SettingsError`` if it is unusable."""
    plugin = find_session_files(settings.files)
    files: SessionFiles = plugin.work(settings, ledger, threads) if plugin else SharedFolder()
    return files
