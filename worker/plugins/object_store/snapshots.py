"""Snapshots of session files in an object store (``HELIX_FILES``).

A snapshot is one immutable object: the new file contents, each compressed separately, followed by a manifest of all
files with the object that holds each content. A pointer in the store names the current snapshot.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

#: A snapshot that needs more objects is consolidated, except for its largest object.
_MOST_PACKS = 8
#: The zlib level; transcripts shrink to a fifth at 100 MB/s.
_LEVEL = 3


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file in a snapshot, with the place of its content in the object store.

    Attributes:
        digest: the SHA-256 of its content in hex.
        at, length: position and length of the compressed content in the object, in bytes.
    """

    digest: str
    size: int
    mode: int
    pack: str
    at: int
    length: int


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A file found in a session's folder, with its SHA-256, its size and its permission bits."""

    digest: str
    size: int
    mode: int


@dataclass(frozen=True, slots=True)
class FolderState:
    """The content of a session's folder by path: files, links with their targets, and folders."""

    files: Mapping[str, FoundFile] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)
    folders: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class SnapshotManifest:
    """The table of contents of a snapshot.

    ``retired`` has unneeded objects of earlier snapshots and since when (seconds since the epoch); they stay for
    current readers, and for a store that lost its last second.
    """

    files: Mapping[str, StoredFile] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)
    folders: frozenset[str] = frozenset()
    retired: Mapping[str, float] = field(default_factory=dict)

    @property
    def packs(self) -> frozenset[str]:
        """Return the names of the objects that contain the contents of the files."""
        return frozenset(each.pack for each in self.files.values())

    @property
    def folder_state(self) -> FolderState:
        """Return the state that the session's folder had when the snapshot was made."""
        files = {path: FoundFile(each.digest, each.size, each.mode) for path, each in self.files.items()}
        return FolderState(files, self.links, self.folders)

    def to_bytes(self) -> bytes:
        """Encode the table of contents as compressed JSON."""
        files = {path: tuple(asdict(each).values()) for path, each in self.files.items()}
        data = {"files": files, "links": self.links, "folders": sorted(self.folders), "retired": self.retired}
        return zlib.compress(json.dumps(data).encode(), _LEVEL)

    @classmethod
    def from_bytes(cls, content: bytes) -> SnapshotManifest:
        """Decode the table of contents. Raises ``ValueError`` if the bytes are invalid."""
        try:
            data: dict[str, Any] = json.loads(zlib.decompress(content))
            files = {path: StoredFile(*values) for path, values in data["files"].items()}
            return cls(files, data["links"], frozenset(data["folders"]), data["retired"])
        except (zlib.error, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"no manifest: {error}") from None


@dataclass(frozen=True, slots=True)
class Pointer:
    """The place of a snapshot's table of contents: the object, the position and the checksum."""

    name: str
    at: int
    length: int
    digest: str

    def __str__(self) -> str:
        return f"{self.name} {self.at} {self.length} {self.digest}"

    @classmethod
    def from_text(cls, text: str) -> Pointer:
        """Parse the text form of a pointer. Raises ``ValueError`` if the text is not a pointer."""
        name, at, length, digest = text.split(" ")
        return cls(name, int(at), int(length), digest)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A saved state of a session's folder. A snapshot without a pointer is empty, because nothing was saved yet."""

    pointer: Pointer | None = None
    manifest: SnapshotManifest = field(default_factory=SnapshotManifest)


def hash_content(content: bytes) -> str:
    """Return the SHA-256 of some bytes in hex."""
    return hashlib.sha256(content).hexdigest()


def build_snapshot(
    name: str, found: FolderState, base: Snapshot, read: Callable[[str], bytes | None], *, now: float, grace: float
) -> tuple[Snapshot, bytes]:
    """Create a snapshot of a folder. Return the snapshot and the bytes of the object with the new content.

    ``read`` returns the current content of a file by path, or None if the file is gone; ``grace`` is how long retired
    objects are remembered, in seconds.
    """
    before = base.manifest
    known = {each.digest: each for each in before.files.values()}
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
        files[path] = StoredFile(hash_content(content), len(content), each.mode, name, at, len(piece))
        known[files[path].digest] = files[path]
        pieces.append(piece)
        at += len(piece)
    made = SnapshotManifest(files, found.links, found.folders)
    left = {each: now for each in before.packs | ({base.pointer.name} if base.pointer else set()) if each != name}
    still = {each: since for each, since in before.retired.items() if now - since < grace}
    retired = {each: since for each, since in {**left, **still}.items() if each not in made.packs}
    made = SnapshotManifest(made.files, made.links, made.folders, retired)
    end = made.to_bytes()
    return Snapshot(Pointer(name, at, len(end), hash_content(end)), made), b"".join([*pieces, end])
