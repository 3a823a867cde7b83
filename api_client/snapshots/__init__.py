"""Sessions' files in an object store (``HELIX_FILES``): manifest (pure) → objects → what relays and gc read."""

from __future__ import annotations

import asyncio
import zlib

from api_client.contract.keys import Keys, session_digest, shard_for
from api_client.contract.settings import Settings
from api_client.snapshots.manifest import Pointer, Snapshot, SnapshotManifest, StoredFile, digest_of
from api_client.snapshots.objects import SHORT_PATIENCE, FilesLost, Objects
from api_client.store import Store


def snapshot_at(objects: Objects, text: str) -> Snapshot:
    """The snapshot that a pointer of the store names; one without files for an empty text.

    Raises:
        FilesLost: it is not there, or is another. FilesUnavailable: the object store stays away.
    """
    if not text:
        return Snapshot()
    try:
        pointer = Pointer.parse(text)
        [end] = objects.parts(pointer.name, [(pointer.at, pointer.length)])
        if digest_of(end) != pointer.digest:
            raise ValueError("its manifest is another")
        return Snapshot(pointer, SnapshotManifest.from_bytes(end))
    except ValueError as error:
        raise FilesLost(f"the session's snapshot {text[:200]!r} cannot be read: {error}") from None


def contents(objects: Objects, pack: str, files: list[StoredFile]) -> list[bytes]:
    """The contents of files of one object. Raises as ``snapshot_at``."""
    found = []
    pieces = objects.parts(pack, [(each.at, each.length) for each in files])
    for each, piece in zip(files, pieces, strict=True):
        try:
            content = zlib.decompressobj().decompress(piece, each.size + 1)
        except zlib.error:
            content = b""
        if digest_of(content) != each.digest:
            raise FilesLost(f"the object {pack} does not hold what its snapshot says")
        found.append(content)
    return found


class SnapshotReader:
    """Reads sessions' current snapshots, where ``HELIX_FILES`` keeps them."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._settings: Settings = store.settings
        self._objects: Objects | None = None

    async def of(self, session_id: str) -> Snapshot | None:
        """The current snapshot of a session; None where sessions are in a shared folder.

        Raises:
            FilesLost, FilesUnavailable: as ``snapshot_at``. StoreUnavailable: the store does not answer.
        """
        if not self._settings.files:
            return None
        keys = Keys(self._settings.namespace, shard_for(session_id, self._settings.shards))
        text = await self._store.send("HGET", keys.files, session_digest(session_id))
        return await asyncio.to_thread(snapshot_at, self.objects, text.decode() if text else "")

    @property
    def objects(self) -> Objects:
        """The object store. Raises ``SettingsError``: it cannot be set up so."""
        self._objects = self._objects or Objects(self._settings, SHORT_PATIENCE)
        return self._objects
