"""The archive: a compressed tar file that only its owner can read, with a manifest and its checksum at the end.

The manifest names each file with size and SHA-256. It comes last: an archive that was cut off has none and is refused.
A file that changed while it was read may be in the archive twice; the manifest says which of the two counts.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import tarfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import IO, Any, Self, cast

from worker.backup.errors import BackupFailed, RestoreRefused

FORMAT = "helix-turns.backup/1"
_MANIFEST, _SEAL = "manifest.json", "manifest.sha256"
_CHUNK = 2**20
_BROKEN = (tarfile.TarError, EOFError, zlib.error, ValueError, KeyError, TypeError)


@dataclass(frozen=True, slots=True)
class Entry:
    """A file, or a folder (``sha256`` is empty). ``mtime_ns``: when it was last written to, since the epoch."""

    sha256: str
    size: int
    mode: int
    mtime_ns: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """What an archive holds: its entries by name, facts about the installation, and the manifest's own checksum."""

    entries: Mapping[str, Entry]
    facts: Mapping[str, Any]
    digest: str


class ArchiveWriter:
    """Writes an archive beside its place, and puts it there when it is whole and on the disk.

    Raises:
        BackupFailed: there is a file of that name already. OSError: it cannot be written.
    """

    def __init__(self, target: Path) -> None:
        if target.exists():
            raise BackupFailed(f"{target} exists already; name another file")
        self._target = target
        self._draft = target.with_name(f".{target.name}.{os.getpid()}.partial")
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._file = os.fdopen(os.open(self._draft, flags, 0o600), "w+b")
        self._tar = tarfile.open(fileobj=self._file, mode="w:gz", compresslevel=1, format=tarfile.PAX_FORMAT)  # noqa: SIM115
        self.entries: dict[str, Entry] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._file.close()
        self._draft.unlink(missing_ok=True)

    def add(self, name: str, content: IO[bytes], size: int, *, mode: int = 0o600, mtime_ns: int = 0) -> None:
        """Add a file of exactly ``size`` bytes."""
        info = tarfile.TarInfo(name)
        info.size, info.mode, info.mtime = size, mode & 0o7777, mtime_ns // 10**9
        reading = _Hashing(content)
        self._tar.addfile(info, cast("IO[bytes]", reading))
        self.entries[name] = Entry(reading.sha256, size, mode & 0o7777, mtime_ns)

    def add_folder(self, name: str, *, mode: int, mtime_ns: int) -> None:
        """Add a folder."""
        info = tarfile.TarInfo(name)
        info.type, info.mode, info.mtime = tarfile.DIRTYPE, mode & 0o7777, mtime_ns // 10**9
        self._tar.addfile(info)
        self.entries[name] = Entry("", 0, mode & 0o7777, mtime_ns)

    def forget(self, name: str) -> None:
        """Leave out what was added under this name, and below it."""
        for known in [known for known in self.entries if known == name or known.startswith(f"{name}/")]:
            del self.entries[known]

    def seal(self, facts: Mapping[str, Any]) -> str:
        """Write the manifest and its checksum, wait for the disk, and give the archive its name; returns the checksum.

        Raises:
            OSError: it cannot be written.
        """
        entries = {name: asdict(entry) for name, entry in self.entries.items()}
        manifest = json.dumps({"format": FORMAT, "facts": dict(facts), "entries": entries}).encode()
        digest = hashlib.sha256(manifest).hexdigest()
        for name, content in (_MANIFEST, manifest), (_SEAL, f"{digest}\n".encode()):
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(content), 0o600
            self._tar.addfile(info, io.BytesIO(content))
        self._tar.close()
        self._file.flush()
        os.fsync(self._file.fileno())
        os.link(self._draft, self._target)  # as a rename, but never over another file
        _sync_folder(self._target.parent)
        return digest


@dataclass(slots=True)
class _Hashing:
    """A stream that knows the SHA-256 of what was read from it."""

    stream: IO[bytes]
    _hash: Any = field(default_factory=hashlib.sha256)

    @property
    def sha256(self) -> str:
        """Of what was read so far."""
        return str(self._hash.hexdigest())

    def read(self, size: int = -1) -> bytes:
        """Read as the stream does."""
        found = self.stream.read(size)
        self._hash.update(found)
        return found


def checked(path: Path) -> Manifest:
    """Read a whole archive, compare each file with the manifest, and return that.

    Raises:
        RestoreRefused: it is cut off, damaged, or not a backup. OSError: it cannot be read.
    """
    try:
        return _checked(path)
    except _BROKEN as error:
        raise RestoreRefused(f"{path} is not a whole backup ({type(error).__name__}); take another one") from error


def _checked(path: Path) -> Manifest:
    found: set[tuple[str, str]] = set()
    texts: dict[str, bytes] = {}
    with gzip.open(path) as unpacked, tarfile.open(fileobj=unpacked, mode="r|") as tar:
        for info in tar:
            if info.name in {_MANIFEST, _SEAL}:
                texts[info.name] = _content(tar, info).read()
            elif info.isdir():
                found.add((info.name, ""))
            else:
                reading = _Hashing(_content(tar, info))
                while reading.read(_CHUNK):
                    pass
                found.add((info.name, reading.sha256))
        while unpacked.read(_CHUNK):  # to the checksum at its very end
            pass
    if set(texts) != {_MANIFEST, _SEAL}:
        raise RestoreRefused(f"{path} is half a backup: its end is missing; take another one")
    digest = hashlib.sha256(texts[_MANIFEST]).hexdigest()
    if texts[_SEAL].decode().strip() != digest:
        raise RestoreRefused(f"{path} is damaged: the checksum of its manifest differs; take another one")
    data = json.loads(texts[_MANIFEST])
    if data["format"] != FORMAT:
        raise RestoreRefused(f"{path} has the format {str(data['format'])[:40]!r}; this release reads {FORMAT}")
    entries = {name: Entry(**entry) for name, entry in data["entries"].items()}
    for name, entry in entries.items():
        if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
            raise RestoreRefused(f"{path} holds a file outside of it: {name[:80]!r}")
        if (name, entry.sha256) not in found:
            raise RestoreRefused(f"{path} is damaged: the checksum of {name[:80]!r} differs; take another one")
    return Manifest(entries, data["facts"], digest)


def contents(path: Path, manifest: Manifest) -> Iterator[tuple[str, Entry, IO[bytes] | None]]:
    """What counts of an archive, in its order: name, entry, and a file's content (read it before the next one).

    Raises:
        OSError, tarfile.TarError: it cannot be read any more.
    """
    with tarfile.open(path, mode="r|gz") as tar:
        for info in tar:
            if entry := manifest.entries.get(info.name):
                yield info.name, entry, None if info.isdir() else _content(tar, info)


def _content(tar: tarfile.TarFile, info: tarfile.TarInfo) -> IO[bytes]:
    content = tar.extractfile(info) if info.isreg() else None
    if content is None:
        raise RestoreRefused(f"the archive holds something that is neither file nor folder: {info.name[:80]!r}")
    return content


def _sync_folder(path: Path) -> None:
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
