"""Sessions' files in an S3-compatible object store (``HELIX_FILES``), so that workers share no folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from api_client.contract.settings import Settings
    from api_client.store import Store
    from api_client.turns.record.ledger import Ledger
    from worker.plugins.object_store.reading import SnapshotReader
    from worker.plugins.object_store.snapshot_store import SnapshotStore
    from worker.turns.loops.threads import Threads


class ObjectStore:
    """The plug-in, as ``find_session_files`` returns it. A relay imports nothing of a worker."""

    @staticmethod
    def read(store: Store) -> SnapshotReader:
        """Return the reader for relays and operators."""
        from worker.plugins.object_store.reading import SnapshotReader

        return SnapshotReader(store)

    @staticmethod
    def work(settings: Settings, ledger: Ledger, threads: Threads) -> SnapshotStore:
        """Return the store for a worker. Raise ``SettingsError`` if the settings are unusable."""
        from worker.plugins.object_store.snapshot_store import SnapshotStore

        return SnapshotStore(settings, ledger, threads)
