"""Access to the object store by names and contents. No name is written twice, so any S3 service is suitable."""

from __future__ import annotations

import re
import secrets
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar
from urllib.parse import urlsplit

from api_client.contract.errors import SettingsError
from api_client.contract.session_files import SessionFilesAway, SessionFilesGone
from api_client.contract.settings import Settings
from worker.plugins.object_store.snapshots import Pointer, Snapshot, SnapshotManifest, StoredFile, hash_content

T = TypeVar("T")

#: Seconds for which a request is retried, and for a single answer; pages and probes retry for a shorter time.
_PATIENCE, _ANSWER = 20.0, 60.0
SHORT_PATIENCE = 3.0
#: Prefix of the objects that probe the store.
_PROBES = "probes"


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object in the object store: its name, its size in bytes, and the time of its upload."""

    name: str
    size: int
    at: float


class ObjectStoreClient:
    """Reads and writes the objects of one installation in an object store. Blocking, but thread-safe.

    Raises ``SessionFilesAway`` if the object store refuses, or does not answer for ``patience`` seconds.
    """

    def __init__(self, settings: Settings, patience: float = _PATIENCE) -> None:
        """Connect to the object store. Raises ``SettingsError``, or ``ImportError`` if obstore is missing."""
        import obstore
        from obstore.store import S3Store

        self._api: Any = obstore
        place = urlsplit(settings.files)
        config: dict[str, Any] = {}
        if settings.files_endpoint:
            config = {"endpoint": settings.files_endpoint, "virtual_hosted_style_request": False}
        plain = settings.files_endpoint.startswith("http://")
        try:
            self._store: Any = S3Store(
                place.netloc,
                prefix="/".join(filter(None, (place.path.strip("/"), settings.namespace))),
                client_options={"allow_http": plain, "timeout": timedelta(seconds=min(_ANSWER, 3 * patience))},
                retry_config={"max_retries": 20, "retry_timeout": timedelta(seconds=patience)},
                **config,
            )
        except obstore.exceptions.BaseError as error:
            raise SettingsError([f"HELIX_FILES: {error}"]) from None

    def put_object(self, name: str, content: bytes) -> None:
        """Store an object with this name and content, atomically and in one request."""
        self._call_store(lambda: self._api.put(self._store, name, content, use_multipart=False))

    def read_parts(self, name: str, places: Sequence[tuple[int, int]]) -> list[bytes]:
        """Return parts of an object, each given by position and length. Nearby parts share a request."""
        starts, lengths = [at for at, _ in places], [length for _, length in places]
        found = self._call_store(lambda: self._api.get_ranges(self._store, name, starts=starts, lengths=lengths))
        return [bytes(each) for each in found]

    def list_objects(self) -> Iterator[StoredObject]:
        """Yield the name, size and upload time of every object."""
        listed = iter(self._api.list(self._store))
        while (chunk := self._call_store(lambda: next(listed, None))) is not None:
            for each in chunk:
                yield StoredObject(each["path"], each["size"], each["last_modified"].timestamp())

    def remove_object(self, name: str) -> None:
        self._call_store(lambda: self._api.delete(self._store, name))

    def probe_store(self) -> float:
        """Store, read and delete a test object. Return the object store's time in seconds since the epoch."""
        name, content = f"{_PROBES}/{secrets.token_hex(8)}", b"may be removed"
        self.put_object(name, content)
        try:
            stored: float = self._call_store(lambda: self._api.head(self._store, name))["last_modified"].timestamp()
            if self.read_parts(name, [(0, len(content))]) != [content]:
                raise SessionFilesAway("the object store does not return what it was given")
        finally:
            self.remove_object(name)
        return stored

    def _call_store(self, ask: Callable[[], T]) -> T:
        try:
            return ask()
        except FileNotFoundError as error:
            raise SessionFilesGone(f"not in the object store: {_describe_error(error)}") from None
        except (self._api.exceptions.BaseError, OSError) as error:
            raise SessionFilesAway(f"the object store: {_describe_error(error)}") from None


def _describe_error(error: Exception) -> str:
    text = str(error)
    found = (re.search(rf"<{name}>([^<]*)</{name}>", text) for name in ("Code", "Message"))
    return ": ".join(each[1] for each in found if each)[:300] or text.partition("\n")[0][:300]


def load_snapshot(objects: ObjectStoreClient, text: str) -> Snapshot:
    """Load the snapshot that a pointer refers to. Return an empty snapshot for an empty pointer.

    Raises ``SessionFilesGone`` if the snapshot is missing or damaged, ``SessionFilesAway`` without an answer.
    """
    if not text:
        return Snapshot()
    try:
        pointer = Pointer.from_text(text)
        [end] = objects.read_parts(pointer.name, [(pointer.at, pointer.length)])
        if hash_content(end) != pointer.digest:
            raise ValueError("its manifest is another")
        return Snapshot(pointer, SnapshotManifest.from_bytes(end))
    except ValueError as error:
        raise SessionFilesGone(f"the session's snapshot {text[:200]!r} cannot be read: {error}") from None


def read_contents(objects: ObjectStoreClient, pack: str, files: list[StoredFile]) -> list[bytes]:
    """Return the contents of files that are stored in the same object. Raises the errors of ``load_snapshot``."""
    found = []
    pieces = objects.read_parts(pack, [(each.at, each.length) for each in files])
    for each, piece in zip(files, pieces, strict=True):
        try:
            content = zlib.decompressobj().decompress(piece, each.size + 1)
        except zlib.error:
            content = b""
        if hash_content(content) != each.digest:
            raise SessionFilesGone(f"the object {pack} does not hold what its snapshot says")
        found.append(content)
    return found
