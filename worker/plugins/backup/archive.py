"""Archives: compressed tar files, readable only by their owner, that end with manifest and checksum.

A truncated archive has no manifest and is refused. Reading is safe for untrusted archives.
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
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self, cast

from api_client.contract.errors import HelixError, RestoreRefused

FORMAT = "helix-turns.backup/1"
_MANIFEST, _SEAL = "manifest.json", "manifest.sha256"
_CHUNK = 2**20
#: Bytes at the start of a dump that name its format, for example "REDIS0010" or "VALKEY080".
HEAD_BYTES = 9
_BROKEN = (
    *(tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile),
    *(ValueError, KeyError, TypeError, AttributeError, RecursionError),
)
#: Limits of an archive: members, bytes of a name, of a part of a name, of a header, and of the facts.
_MOST_MEMBERS, _NAME_BYTES, _PART_BYTES, _HEADER_BYTES, _FACTS_BYTES = 1_000_000, 4096, 255, 2**16, 2**22
#: Most bytes of a manifest's entry, besides six per letter of its name.
_ENTRY_BYTES = 256
_MOST_NUMBER = 2**63
_PERMISSIONS = 0o777


class BackupError(HelixError):
    """Raised when a backup fails. No archive was written."""

    code = "backup_failed"


@dataclass(frozen=True, slots=True)
class ArchiveEntry:
    """A file in an archive, or a folder if ``sha256`` is empty. ``mtime_ns`` is the time of the last change."""

    sha256: str
    size: int
    mode: int
    mtime_ns: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """The table of contents of a backup archive.

    Attributes:
        digest: checksum of the manifest itself.
        places: index of each entry among the archive's members.
        store_head: first bytes of the store's dump, which name its format.
    """

    entries: Mapping[str, ArchiveEntry]
    facts: Mapping[str, Any]
    digest: str
    places: Mapping[str, int]
    store_head: bytes


class ArchiveWriter:
    """Writes a backup archive to a temporary file, which is renamed when the archive is complete.

    Raises ``BackupError`` if the target exists.
    """

    def __init__(self, target: Path) -> None:
        if target.exists():
            raise BackupError(f"{target} exists already; name another file")
        self._target = target
        self._draft = target.with_name(f".{target.name}.{os.getpid()}.partial")
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._file = os.fdopen(os.open(self._draft, flags, 0o600), "w+b")
        self._tar = tarfile.open(fileobj=self._file, mode="w:gz", compresslevel=1, format=tarfile.PAX_FORMAT)  # noqa: SIM115
        self.entries: dict[str, ArchiveEntry] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._file.close()
        self._draft.unlink(missing_ok=True)

    def add_file(self, name: str, content: IO[bytes], size: int, *, mode: int = 0o600, mtime_ns: int = 0) -> None:
        """Add a file of exactly ``size`` bytes, read from ``content``."""
        info = tarfile.TarInfo(name)
        info.size, info.mode, info.mtime = size, mode & 0o7777, mtime_ns // 10**9
        reading = _HashingReader(content)
        self._tar.addfile(info, cast("IO[bytes]", reading))
        self.entries[name] = ArchiveEntry(reading.sha256, size, mode & 0o7777, mtime_ns)

    def add_folder(self, name: str, *, mode: int, mtime_ns: int) -> None:
        """Add a folder without its content."""
        info = tarfile.TarInfo(name)
        info.type, info.mode, info.mtime = tarfile.DIRTYPE, mode & 0o7777, mtime_ns // 10**9
        self._tar.addfile(info)
        self.entries[name] = ArchiveEntry("", 0, mode & 0o7777, mtime_ns)

    def drop_entry(self, name: str) -> None:
        """Remove an entry and everything below it from the table of contents."""
        for known in [known for known in self.entries if known == name or known.startswith(f"{name}/")]:
            del self.entries[known]

    def write_manifest(self, facts: Mapping[str, Any]) -> str:
        """Complete the archive with its table of contents, rename it to its final name, and return the checksum.

        Raises ``BackupError`` if the archive has too many files.
        """
        if len(self.entries) > _MOST_MEMBERS - 2:
            raise BackupError(
                f"{len(self.entries)} files are more than a backup holds; `turns data gc` removes old ones"
            )
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
        os.link(self._draft, self._target)  # like a rename that never replaces another file
        _sync_folder(self._target.parent)
        return digest


@dataclass(slots=True)
class _HashingReader:
    stream: IO[bytes]
    _hash: Any = field(default_factory=hashlib.sha256)

    @property
    def sha256(self) -> str:
        return str(self._hash.hexdigest())

    def read(self, size: int = -1) -> bytes:
        found = self.stream.read(size)
        self._hash.update(found)
        return found


class _LimitedHeader(tarfile.TarInfo):
    """A tar header with limited size and types, so that a damaged archive cannot exhaust memory."""

    @classmethod
    def frombuf(cls, buf: Any, encoding: str, errors: str) -> Self:
        found = super().frombuf(buf, encoding, errors)
        extended = found.type == tarfile.XHDTYPE
        if not (extended or found.type in {tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.DIRTYPE}):
            raise RestoreRefused(f"the archive holds something that is neither file nor folder: {found.name[:80]!r}")
        if extended and found.size > _HEADER_BYTES:
            raise RestoreRefused(f"the archive has a header of {found.size} bytes; take another one")
        return found

    def _proc_gnusparse_10(self, *_: object) -> None:
        raise tarfile.ReadError("a file with holes")


def read_manifest(path: Path, store: str) -> Manifest:
    """Verify all files of an archive, and return its table of contents. ``store`` names the store's dump.

    Raises ``RestoreRefused`` if the archive is truncated, damaged, or no backup.
    """
    try:
        return _verify_archive(path, store)
    except _BROKEN as error:
        raise RestoreRefused(f"{path} is not a whole backup; take another one") from error


def _iterate_members(path: Path) -> Iterator[tuple[int, tarfile.TarInfo, IO[bytes] | None]]:
    with gzip.open(path) as unpacked, tarfile.open(fileobj=unpacked, mode="r|", tarinfo=_LimitedHeader) as tar:
        number = 0
        while info := tar.next():
            tar.members.clear()  # type: ignore[attr-defined]  # tarfile keeps them all
            if number >= _MOST_MEMBERS or len(os.fsencode(info.name)) > _NAME_BYTES:
                raise RestoreRefused(f"{path} holds more than a backup may; take another one")
            yield number, info, None if info.isdir() else tar.extractfile(info)
            number += 1
        while unpacked.read(_CHUNK):  # read up to the checksum of gzip
            pass


def _verify_archive(path: Path, store: str) -> Manifest:
    found: dict[tuple[str, str], int] = {}
    texts: dict[str, bytes] = {}
    head, most = b"", _FACTS_BYTES
    for number, info, content in _iterate_members(path):
        most += _ENTRY_BYTES + 6 * len(info.name)
        if content is None:
            found[info.name, ""] = number
        elif info.name in {_MANIFEST, _SEAL}:
            if info.size > most:  # too large for one entry per member
                raise RestoreRefused(f"{path} has a manifest of {info.size} bytes; take another one")
            texts[info.name] = content.read()
        else:
            reading = _HashingReader(content)
            first = reading.read(_CHUNK)
            while reading.read(_CHUNK):
                pass
            found[info.name, reading.sha256] = number
            head = first[:HEAD_BYTES] if info.name == store else head
    if set(texts) != {_MANIFEST, _SEAL}:
        raise RestoreRefused(f"{path} is half a backup: its end is missing; take another one")
    digest = hashlib.sha256(texts[_MANIFEST]).hexdigest()
    if texts[_SEAL].decode().strip() != digest:
        raise RestoreRefused(f"{path} is damaged: the checksum of its manifest differs; take another one")
    data = json.loads(texts.pop(_MANIFEST))
    if data["format"] != FORMAT:
        raise RestoreRefused(f"{path} has the format {str(data['format'])[:40]!r}; this release reads {FORMAT}")
    entries = {name: _parse_entry(entry) for name, entry in data["entries"].items()}
    for name, entry in entries.items():
        if is_unsafe_name(name):
            raise RestoreRefused(f"{path} holds a file outside of it: {name[:80]!r}")
        if (name, entry.sha256) not in found:
            raise RestoreRefused(f"{path} is damaged: the checksum of {name[:80]!r} differs; take another one")
    places = {name: found[name, entry.sha256] for name, entry in entries.items()}
    return Manifest(entries, _check_facts(data["facts"]), digest, places, head)


def _parse_entry(data: Mapping[str, Any]) -> ArchiveEntry:
    entry = ArchiveEntry(**data)
    if not isinstance(entry.sha256, str) or not all(
        type(number) is int and 0 <= number < _MOST_NUMBER for number in (entry.size, entry.mode, entry.mtime_ns)
    ):
        raise ValueError("no entry")
    return replace(entry, mode=entry.mode & _PERMISSIONS)


def _check_facts(facts: Mapping[str, Any]) -> Mapping[str, Any]:
    rows = facts["settings"]
    if not (isinstance(facts["namespace"], str) and isinstance(rows, list)):
        raise TypeError("no facts")
    if not all(isinstance(row[name], str) for row in rows for name in ("name", "value", "origin")):
        raise TypeError("no settings")
    return facts


def is_unsafe_name(name: str) -> bool:
    """Return True if an archive's file name is invalid, or could lead out of the target folder."""
    parts = name.split("/")
    return "\0" in name or "." in parts[2:] or any(p in {"", ".."} or len(os.fsencode(p)) > _PART_BYTES for p in parts)


def iterate_contents(path: Path, manifest: Manifest) -> Iterator[tuple[str, ArchiveEntry, IO[bytes] | None]]:
    """Yield the name, the entry and the content stream of each file and folder in an archive.

    Raises ``OSError`` or ``tarfile.TarError``.
    """
    for number, info, content in _iterate_members(path):
        if manifest.places.get(info.name) == number:
            yield info.name, manifest.entries[info.name], content


def _sync_folder(path: Path) -> None:
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
