"""Stores sessions' files in an S3-compatible object store (``HELIX_FILES``), so that workers share no folder."""

from typing import Any


class ObjectStore:
    """The plug-in that keeps session files in an S3-compatible object store, for relays and workers."""

    @staticmethod
    def read(store: Any) -> Any:
        """Create the ``SnapshotReader`` that relays and operators use."""
        from worker.plugins.object_store.reading import SnapshotReader

        return SnapshotReader(store)

    @staticmethod
    def work(settings: Any, ledger: Any, threads: Any) -> Any:
        """Create the ``SnapshotStore`` that workers use. Raises ``SettingsError`` if the settings are unusable."""
        from worker.plugins.object_store.snapshot_store import SnapshotStore

        return SnapshotStore(settings, ledger, threads)
