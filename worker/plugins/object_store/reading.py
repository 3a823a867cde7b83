"""Reads and clears stored sessions, for relays and operators."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass

from api_client.contract.keys import session_digest
from api_client.contract.session_files import ClearedFiles
from api_client.store import Store
from api_client.turns.sessions import session_files_key
from worker.plugins.object_store.object_clearing import clear_objects
from worker.plugins.object_store.objects import SHORT_PATIENCE, ObjectStoreClient, load_snapshot, read_contents
from worker.plugins.object_store.snapshots import Snapshot


class SnapshotReader:
    """Gives relays and operators access to the stored files of sessions. Implements ``StoredSessions``."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._objects: ObjectStoreClient | None = None

    async def read(self, session_id: str) -> SnapshotFiles:
        return SnapshotFiles(await self.of(session_id), self.objects)

    async def of(self, session_id: str) -> Snapshot:
        text = await self._store.send_command("HGET", session_files_key(self._store), session_digest(session_id))
        return await asyncio.to_thread(load_snapshot, self.objects, text.decode() if text else "")

    async def clear(self, *, now: float, session_seconds: float, dry_run: bool) -> ClearedFiles:
        return await clear_objects(self._store, self.objects, now=now, session_seconds=session_seconds, dry_run=dry_run)

    @property
    def objects(self) -> ObjectStoreClient:
        """Return the connection to the object store. Raises ``SettingsError`` if the settings are unusable."""
        self._objects = self._objects or ObjectStoreClient(self._store.settings, SHORT_PATIENCE)
        return self._objects


@dataclass(frozen=True, slots=True)
class SnapshotFiles:
    """The files in a session's snapshot, read from the object store on demand. Implements ``StoredFiles``."""

    snapshot: Snapshot
    objects: ObjectStoreClient

    @property
    def sizes(self) -> Mapping[str, int]:
        """Return the size of each file in bytes, by path."""
        return {path: file.size for path, file in self.snapshot.manifest.files.items()}

    def open(self, path: str) -> tuple[int, int]:
        """Copy a file of the snapshot into a temporary file. Return an open descriptor and the size."""
        file = self.snapshot.manifest.files.get(path)
        if file is None:
            raise FileNotFoundError(path)
        with tempfile.TemporaryFile() as draft:
            draft.write(read_contents(self.objects, file.pack, [file])[0])
            draft.flush()
            return os.dup(draft.fileno()), file.size
