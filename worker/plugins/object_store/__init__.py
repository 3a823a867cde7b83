"""Sessions' files in an S3-compatible object store (``HELIX_FILES``), so that workers share no folder."""

from typing import Any


class ObjectStore:
    """The plug-in, as ``find_session_files`` returns it. A relay imports nothing of a worker."""

    @staticmethod
    def read(store: Any) -> Any:
        """Return the ``SnapshotReader`` for relays and operators."""
        from worker.plugins.object_store.reading import SnapshotReader

        return SnapshotReader(store)

    @staticmethod
    def work(settings: Any, ledger: Any, threads: Any) -> Any:
        """Return the ``SnapshotStore`` of a worker. Raise ``SettingsError`` if the settings are unusable."""
        from worker.plugins.object_store.snapshot_store import SnapshotStore

        return SnapshotStore(settings, ledger, threads)
