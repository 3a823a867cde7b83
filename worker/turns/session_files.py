"""Storage of a session's files between turns: a folder that all workers share, or a plug-in's storage."""

from __future__ import annotations

from typing import Protocol

from api_client.contract.session_files import find_session_files
from api_client.contract.settings import Settings
from api_client.turns.record.ledger import Ledger
from worker.turns.leases.lease import Lease
from worker.turns.loops.threads import Threads


class SessionFiles(Protocol):
    """Interface for loading a session's files before a turn and saving them before a result is stored."""

    async def restore_files(self, lease: Lease) -> None:
        """Restore the session's folder to the state stored with the session's last transition.

        Raises ``LeaseLost``, ``OSError`` or ``SessionFilesError``.
        """

    async def save_files(self, lease: Lease, *, bounded: bool = True) -> str:
        """Save the session's folder. Return a reference to store with the transition, or an empty string.

        If ``bounded``, size limits apply, and the call waits for an unavailable store as long as the lease allows.
        Raises ``SessionFilesTooLarge``.
        """

    def find_trouble(self) -> str:
        """Return why session files cannot be loaded or saved now, or an empty string. May block."""


class SharedFolder:
    """Session files in a folder that all workers share, so that nothing has to be loaded or saved."""

    async def restore_files(self, _lease: Lease) -> None:
        """Do nothing, because all workers share the folder."""

    async def save_files(self, _lease: Lease, *, bounded: bool = True) -> str:
        """Return an empty reference, because all workers share the folder."""
        return ""

    def find_trouble(self) -> str:
        """Return an empty string, because the machine's health check covers the folder."""
        return ""


def create_session_files(settings: Settings, ledger: Ledger, threads: Threads) -> SessionFiles:
    """Create the storage for session files that the settings select. Raises ``SettingsError``."""
    plugin = find_session_files(settings.files)
    files: SessionFiles = plugin.work(settings, ledger, threads) if plugin else SharedFolder()
    return files
