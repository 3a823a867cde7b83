"""Sessions' files in an object store (``HELIX_FILES``): manifest (pure), objects, reading, and what gc removes.

A snapshot is one object that never changes: the contents that were new, each compressed by itself, and behind them the
manifest, which lists all files with the object that has each one's content. So a snapshot is as large as what changed,
and its reader needs few objects. A pointer in the store names the current snapshot.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

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
