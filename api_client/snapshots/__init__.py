"""Sessions' files in an object store (``HELIX_FILES``): manifest (pure), objects, reading, and what gc removes.

A snapshot is one object that never changes: the contents that were new, each compressed by itself, and behind them the
manifest, which lists all files with the object that has each one's content. So a snapshot is as large as what changed,
and its reader needs few objects. A pointer in the store names the current snapshot.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import secrets
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from typing import Any, TypeVar
from urllib.parse import urlsplit

from api_client.contract.issues import HelixError, SettingsError
from api_client.contract.keys import Keys, session_digest, shard_for
from api_client.contract.settings import Settings
from api_client.store import Store

#: A snapshot that needs more objects than this is written again, but for its largest object.
_MOST_PACKS = 8
#: Of zlib: transcripts shrink to a fifth at 100 MB/s.
_LEVEL = 3


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file of a snapshot.

    Attributes:
        digest: SHA-256 of its content, in hex. size: bytes of it. mode: its permission bits.
        pack: the name of the object that has it. at, length: where in it, compressed, in bytes.
    """

    digest: str
    size: int
    mode: int
    pack: str
    at: int
    length: int


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A file as a folder has it; see ``StoredFile``."""

    digest: str
    size: int
    mode: int


@dataclass(frozen=True, slots=True)
class FolderState:
    """What a folder holds, by path in it: files, links with their targets, and all its folders."""

    files: Mapping[str, FoundFile] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)
    folders: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class SnapshotManifest:
    """What a snapshot holds.

    Attributes:
        retired: objects of the snapshots before it that it does not need, and since when, in seconds since the epoch:
            somebody may still read them, and a store that lost its last second points to them again.
    """

    files: Mapping[str, StoredFile] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)
    folders: frozenset[str] = frozenset()
    retired: Mapping[str, float] = field(default_factory=dict)

    @property
    def packs(self) -> frozenset[str]:
        """The objects that have its files' contents."""
        return frozenset(each.pack for each in self.files.values())

    @property
    def found(self) -> FolderState:
        """The folder of which it is a snapshot."""
        files = {path: FoundFile(each.digest, each.size, each.mode) for path, each in self.files.items()}
        return FolderState(files, self.links, self.folders)

    def to_bytes(self) -> bytes:
        """As its object has it."""
        files = {path: tuple(asdict(each).values()) for path, each in self.files.items()}
        data = {"files": files, "links": self.links, "folders": sorted(self.folders), "retired": self.retired}
        return zlib.compress(json.dumps(data).encode(), _LEVEL)

    @classmethod
    def from_bytes(cls, content: bytes) -> SnapshotManifest:
        """Read it again. Raises ``ValueError``: it is not one."""
        try:
            data: dict[str, Any] = json.loads(zlib.decompress(content))
            files = {path: StoredFile(*values) for path, values in data["files"].items()}
            return cls(files, data["links"], frozenset(data["folders"]), data["retired"])
        except (zlib.error, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"no manifest: {error}") from None


@dataclass(frozen=True, slots=True)
class Pointer:
    """The place of a snapshot's manifest: the object's name, where in it, and the manifest's SHA-256 in hex."""

    name: str
    at: int
    length: int
    digest: str

    def __str__(self) -> str:
        return f"{self.name} {self.at} {self.length} {self.digest}"

    @classmethod
    def parse(cls, text: str) -> Pointer:
        """Read it from the store. Raises ``ValueError``: it is not one."""
        name, at, length, digest = text.split(" ")
        return cls(name, int(at), int(length), digest)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A snapshot; without a pointer the session has none yet."""

    pointer: Pointer | None = None
    manifest: SnapshotManifest = field(default_factory=SnapshotManifest)


def digest_of(content: bytes) -> str:
    """A content's SHA-256, in hex."""
    return hashlib.sha256(content).hexdigest()


def pack(
    name: str, found: FolderState, base: Snapshot, read: Callable[[str], bytes | None], *, now: float, grace: float
) -> tuple[Snapshot, bytes]:
    """Make the snapshot of a folder, and the object that it needs besides those of the one before.

    ``name`` is the new object's, ``base`` the snapshot before. ``read`` returns a file's content by its path, None
    where it is gone by now; that counts, not ``found``. ``now`` in seconds since the epoch; ``grace``: for how many
    seconds retired objects are remembered.
    """
    before = base.manifest
    known = {each.digest: each for each in before.files.values()}
    # Where there are too many objects, the contents of all but the largest go into the new one.
    used: Counter[str] = Counter()
    for digest in {each.digest for each in found.files.values()} & known.keys():
        used[known[digest].pack] += known[digest].length
    anew = frozenset(name for name, _ in used.most_common()[1:]) if len(used) > _MOST_PACKS else frozenset()
    files: dict[str, StoredFile] = {}
    pieces: list[bytes] = []
    at = 0
    for path, each in sorted(found.files.items()):
        old = known.get(each.digest)
        if old is not None and old.pack not in anew:
            files[path] = StoredFile(old.digest, old.size, each.mode, old.pack, old.at, old.length)
            continue
        if (content := read(path)) is None:
            continue
        piece = zlib.compress(content, _LEVEL)
        files[path] = StoredFile(digest_of(content), len(content), each.mode, name, at, len(piece))
        known[files[path].digest] = files[path]
        pieces.append(piece)
        at += len(piece)
    made = SnapshotManifest(files, found.links, found.folders)
    left = {each: now for each in before.packs | ({base.pointer.name} if base.pointer else set()) if each != name}
    still = {each: since for each, since in before.retired.items() if now - since < grace}
    retired = {each: since for each, since in {**left, **still}.items() if each not in made.packs}
    made = SnapshotManifest(made.files, made.links, made.folders, retired)
    end = made.to_bytes()
    return Snapshot(Pointer(name, at, len(end), digest_of(end)), made), b"".join([*pieces, end])


# The object store: names and contents. Only this package imports ``obstore`` (the extra ``s3``), when it is used.
# Nothing is written twice under one name, so it needs no conditional write, and any service that speaks S3 will do.

T = TypeVar("T")

#: How long a request is tried again, and one may take, in seconds; where somebody waits for a page, and to look.
_PATIENCE, _ANSWER = 20.0, 60.0
SHORT_PATIENCE = 3.0
#: Below its bucket and prefix: objects that say whether the store takes any.
_PROBES = "probes"


class FilesUnavailable(HelixError):
    """The object store does not answer, or refuses: another time it may work."""

    code = "files_unavailable"


class FilesLost(HelixError):
    """The object store does not have what the store points to, or something else under its name."""

    code = "session_lost"


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object: its name, its size in bytes, and when it was stored, in seconds since the epoch."""

    name: str
    size: int
    at: float


class Objects:
    """The objects of one namespace. Each method blocks, and may be called from any thread.

    Raises ``FilesUnavailable``: the store stayed away for ``patience`` seconds, or refuses.
    """

    def __init__(self, settings: Settings, patience: float = _PATIENCE) -> None:
        """Raises ``SettingsError``: it cannot be set up so. ``ImportError``: obstore is not installed."""
        import obstore
        from obstore.store import S3Store

        self._api: Any = obstore
        place = urlsplit(settings.files)
        config: dict[str, Any] = {"region": settings.files_region} if settings.files_region else {}
        if settings.files_endpoint:
            config |= {"endpoint": settings.files_endpoint, "virtual_hosted_style_request": False}
        kind, _, key = settings.files_encryption.partition(" ")
        if kind != "none":
            config |= {"server_side_encryption": kind} | ({"sse_kms_key_id": key} if key else {})
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

    def put(self, name: str, content: bytes) -> None:
        """Store an object: by one request, so that there is all of it or none."""
        self._asked(lambda: self._api.put(self._store, name, content, use_multipart=False))

    def parts(self, name: str, places: Sequence[tuple[int, int]]) -> list[bytes]:
        """Parts of an object, each from where and how long; near ones come in one request.

        Raises ``FilesLost``: there is no such object.
        """
        starts, lengths = [at for at, _ in places], [length for _, length in places]
        found = self._asked(lambda: self._api.get_ranges(self._store, name, starts=starts, lengths=lengths))
        return [bytes(each) for each in found]

    def all(self) -> Iterator[StoredObject]:
        """Every object."""
        listed = iter(self._api.list(self._store))
        while (chunk := self._asked(lambda: next(listed, None))) is not None:
            for each in chunk:
                yield StoredObject(each["path"], each["size"], each["last_modified"].timestamp())

    def remove(self, name: str) -> None:
        """Remove an object; one that is gone is left so."""
        self._asked(lambda: self._api.delete(self._store, name))

    def probe(self) -> float:
        """Store, read and remove an object. Returns the store's time of it, in seconds since the epoch."""
        name, content = f"{_PROBES}/{secrets.token_hex(8)}", b"may be removed"
        self.put(name, content)
        try:
            stored: float = self._asked(lambda: self._api.head(self._store, name))["last_modified"].timestamp()
            if self.parts(name, [(0, len(content))]) != [content]:
                raise FilesUnavailable("the object store does not return what it was given")
        finally:
            self.remove(name)
        return stored

    def _asked(self, ask: Callable[[], T]) -> T:
        try:
            return ask()
        except FileNotFoundError as error:
            raise FilesLost(f"not in the object store: {_said(error)}") from None
        except (self._api.exceptions.BaseError, OSError) as error:
            raise FilesUnavailable(f"the object store: {_said(error)}") from None


def _said(error: Exception) -> str:
    """The service's own code and words, where it sent some; else what the client says."""
    text = str(error)
    found = (re.search(rf"<{name}>([^<]*)</{name}>", text) for name in ("Code", "Message"))
    return ": ".join(each[1] for each in found if each)[:300] or text.partition("\n")[0][:300]


def snapshot_at(objects: Objects, text: str) -> Snapshot:
    """The snapshot that a pointer of the store names; one without files for an empty text.

    Raises ``FilesLost``: it is not there, or is another. ``FilesUnavailable``: the object store stays away.
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

        Raises ``FilesLost``, ``FilesUnavailable``: as ``snapshot_at``. ``StoreUnavailable``: the store does not answer.
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


# Objects that nobody needs any more: found and removed by ``turns gc``. An object counts as needed while the current
# snapshot of its session needs it, or one before did within the grace; and for the grace after its upload: its uploader
# may still be about to store the move that makes it current.

#: Unless it is at work, or was since.
_FORGET = """
if redis.call('EXISTS', KEYS[2]) == 0 and redis.call('HGET', KEYS[1], ARGV[1]) == ARGV[2] then
  redis.call('HDEL', KEYS[1], ARGV[1])
end
"""


@dataclass(slots=True)
class Cleared:
    """What was removed, or would be: objects, and their bytes. ``problems``: what was left alone, and why."""

    objects: int
    size: int
    problems: list[str]


def unneeded(found: Iterable[StoredObject], current: Snapshot, *, now: float, grace: float) -> Iterator[StoredObject]:
    """The objects of a session that nobody needs. Pure; times in seconds."""
    manifest, pointer = current.manifest, current.pointer
    needed = manifest.packs | {name for name, since in manifest.retired.items() if now - since < grace}
    for each in found:
        if each.name not in needed and not (pointer and each.name == pointer.name) and now - each.at > grace:
            yield each


async def clear_objects(
    store: Store, objects: Objects, *, now: float, session_seconds: float, dry_run: bool
) -> Cleared:
    """Remove what nobody needs; with ``dry_run`` only count it.

    Sessions without a new snapshot for ``session_seconds`` are forgotten, unless they are at work (0: never): their
    objects go when their grace is over. Raises ``FilesUnavailable``: the object store stays away. ``StoreUnavailable``:
    the store does.
    """
    cleared = Cleared(0, 0, [])
    grace = store.settings.files_grace_seconds
    found: dict[str, list[StoredObject]] = defaultdict(list)
    # Listed before the pointers are read: what becomes current meanwhile is not in the list, or within its grace.
    for each in await asyncio.to_thread(lambda: list(objects.all())):
        found[each.name.partition("/")[0]].append(each)
    times = {each.name: each.at for each_of in found.values() for each in each_of}
    pointers: dict[str, str] = {}
    for shard in range(store.settings.shards):
        keys = Keys(store.namespace, shard)
        for name, stored in (await store.hash(keys.files)).items():
            session, text = name.decode(), stored.decode()
            pointers[session] = text
            old = session_seconds and now - times.get(text.partition(" ")[0], now) > session_seconds
            if old and not dry_run:
                await store.send("EVAL", _FORGET, 2, keys.files, keys.session_named(session), session, text)
    if found and not pointers:
        cleared.problems.append("the store knows no session of the object store: is it the right one? Nothing removed")
        return cleared
    for session, each_of in found.items():
        newest = pointers.get(session, "").partition(" ")[0]
        if all(each.name == newest or now - each.at <= grace for each in each_of):
            continue
        try:
            current = await asyncio.to_thread(snapshot_at, objects, pointers.get(session, ""))
        except FilesLost as error:
            cleared.problems.append(str(error))
            continue
        for each in unneeded(each_of, current, now=now, grace=grace):
            if not dry_run:
                await asyncio.to_thread(objects.remove, each.name)
            cleared.objects += 1
            cleared.size += each.size
    return cleared
