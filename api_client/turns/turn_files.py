"""Lists and opens the files of a turn's accepted answer, on a disk or in a plug-in's storage.

Agents wrote these files: no link is followed, and every file must be a plain file inside the folder.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from api_client.contract.attempt_record import AttemptRecord
from api_client.contract.errors import HelixError
from api_client.contract.session_files import StoredFiles, StoredSessions
from api_client.contract.session_paths import delivery_name, repaired_name, session_directory
from api_client.contract.settings import Settings
from api_client.contract.turn import Outcome, Turn
from api_client.contract.work import find_work

#: Most files listed per turn; most folder levels; most entries read per folder.
MOST_FILES = 200
_MOST_DEPTH = 8
_MOST_ENTRIES = 2_000
_ANSWER = "response.md"
#: Media types by file extension. Browsers run no scripts in these types; other files are sent as bytes.
IMAGES = {".png": "image/png", ".jpg": "image/jpeg", ".jpeg": "image/jpeg", ".gif": "image/gif", ".webp": "image/webp"}
_TYPES = {
    **IMAGES,
    ".csv": "text/csv",
    ".json": "application/json",
    ".md": "text/markdown",
    ".pdf": "application/pdf",
    ".txt": "text/plain",
    ".zip": "application/zip",
}
_BYTES = "application/octet-stream"
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
#: O_NONBLOCK: opening a FIFO must not wait for a writer.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class FileMissing(HelixError):
    """Raised when a turn has no file with this name, or when this machine does not have the file."""

    code = "file_not_found"


@dataclass(frozen=True, slots=True)
class TurnFile:
    """A file that belongs to a turn's answer. ``path`` is relative to the output folder."""

    path: str
    size: int
    type: str

    @property
    def is_image(self) -> bool:
        """Return True if the file is an image that every browser can show."""
        return self.type in IMAGES.values()


@dataclass(frozen=True, slots=True)
class LinkedFile:
    """An answer's file with a signed download link that expires at ``until`` (seconds since the epoch)."""

    file: TurnFile
    link: str
    until: int

    def to_dict(self) -> dict[str, Any]:
        file = self.file
        return {"path": file.path, "size": file.size, "type": file.type, "link": self.link, "expires_at": self.until}


@dataclass(frozen=True, slots=True)
class _FileFolder:
    base: Path
    parts: tuple[str, ...]
    beside: bool = False

    def has_file(self, path: str) -> bool:
        return not (self.beside and path.startswith("ADR-"))

    def walk_files(self, stored_files: StoredFiles | None) -> Iterator[tuple[str, int]]:
        if stored_files:
            above = self._above
            for path, size in stored_files.sizes.items():
                inner = path.removeprefix(above)
                if inner != path and _are_listable(inner.split("/")):
                    yield inner, size
            return
        with ExitStack() as stack:
            yield from _walk_folder(_open_folder(self.base, self.parts, stack), "")

    def open_file(self, path: str, stored_files: StoredFiles | None) -> tuple[int, int]:
        """Open a file and return its descriptor and size. Raises ``OSError`` if no such file may be sent."""
        if stored_files:
            return stored_files.open(self._above + path)
        *above, name = path.split("/")
        with ExitStack() as stack:
            fd = os.open(name, _FILE, dir_fd=_open_folder(self.base, (*self.parts, *above), stack))
            facts = os.fstat(fd)
            if _is_plain(facts):
                return fd, facts.st_size
            os.close(fd)
            raise OSError("no plain file")

    @property
    def _above(self) -> str:
        return "/".join(self.parts[1:]) + "/"


async def find_snapshot_files(sessions: StoredSessions | None, turn: Turn) -> StoredFiles | None:
    """Return the stored files of the turn's session, or None if they are on a local disk."""
    in_session = find_work(turn.request).in_session
    return await sessions.read(turn.request.session_id) if sessions and in_session else None


def list_files(
    settings: Settings, turn: Turn, attempts: Sequence[AttemptRecord], stored_files: StoredFiles | None = None
) -> list[TurnFile]:
    """Return the files of a turn's accepted answer, sorted by path. The list is empty before acceptance.

    ``stored_files`` are the session's files in a plug-in's storage, or None for files on disk.
    """
    found: dict[str, TurnFile] = {}
    for place in _file_folders(settings, turn, attempts):
        with suppress(OSError):
            for path, size in place.walk_files(stored_files):
                if path != _ANSWER and place.has_file(path):
                    found.setdefault(path, TurnFile(path, size, media_type(path)))
    return [found[path] for path in sorted(found)[:MOST_FILES]]


def open_file(
    settings: Settings,
    turn: Turn,
    attempts: Sequence[AttemptRecord],
    path: str,
    stored_files: StoredFiles | None = None,
) -> tuple[TurnFile, int]:
    """Open a file of a turn's answer. Return the file and a descriptor that the caller must close.

    Raises ``FileMissing`` unless the path is a plain file inside the folder; ``SessionFilesGone`` or
    ``SessionFilesAway`` if the storage lost the file, or does not answer.
    """
    if _are_listable(path.split("/")) and path != _ANSWER:
        for place in _file_folders(settings, turn, attempts):
            if place.has_file(path):
                with suppress(OSError):
                    fd, size = place.open_file(path, stored_files)
                    return TurnFile(path, size, media_type(path)), fd
    raise FileMissing("no such file")


def media_type(path: str) -> str:
    return _TYPES.get(PurePosixPath(path).suffix.lower(), _BYTES)


def _file_folders(settings: Settings, turn: Turn, attempts: Sequence[AttemptRecord]) -> Iterator[_FileFolder]:
    if not turn.success:
        return
    by_code_or_person = turn.outcome in {Outcome.PASSED_BY_FALLBACK, Outcome.PASSED_BY_HUMAN}
    accepted = (turn.best if by_code_or_person else 0) or turn.attempt
    own = find_work(turn.request).locate_folder(turn.request)
    if own is not None:
        base, above = settings.root, own.parts
    else:
        folder = session_directory(settings.sessions_dir, turn.request.session_id)
        base, above = folder.parent, (folder.name,)
    for record in sorted(attempts, key=lambda record: -record.number):
        if record.number > accepted:
            continue
        delivery = delivery_name(turn.turn_id, record.number, record.last_delivery)
        if record.number == accepted:
            yield _FileFolder(base, (*above, "attempts", repaired_name(delivery)))
        elif own is not None:
            return  # each run of this kind of work writes all files
        yield _FileFolder(base, (*above, "attempts", delivery, "output"), beside=record.number < accepted)


def _open_folder(base: Path, parts: Sequence[str], stack: ExitStack) -> int:
    """Open the folder ``parts`` below ``base`` without following links. ``stack`` closes the returned descriptor."""
    fd = os.open(base, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    stack.callback(os.close, fd)
    for part in parts:
        fd = os.open(part, _FOLDER, dir_fd=fd)
        stack.callback(os.close, fd)
    return fd


def _walk_folder(folder: int, above: str, depth: int = 0) -> Iterator[tuple[str, int]]:
    with os.scandir(folder) as entries:
        names = [entry.name for entry, _ in zip(entries, range(_MOST_ENTRIES), strict=False)]
    for name in sorted(names):
        if not _are_listable([name]):
            continue
        with suppress(OSError):
            facts = os.stat(name, dir_fd=folder, follow_symlinks=False)
            if _is_plain(facts):
                yield above + name, facts.st_size
            elif stat.S_ISDIR(facts.st_mode) and depth < _MOST_DEPTH:
                with ExitStack() as stack:
                    below = os.open(name, _FOLDER, dir_fd=folder)
                    stack.callback(os.close, below)
                    yield from _walk_folder(below, f"{above}{name}/", depth + 1)


def _is_plain(facts: os.stat_result) -> bool:
    """Return True for a regular file without other hard links, which could belong to another user."""
    return stat.S_ISREG(facts.st_mode) and facts.st_nlink == 1


def _are_listable(names: Sequence[str]) -> bool:
    return all(name and not name.startswith(".") and name.isprintable() and "\\" not in name for name in names)
