"""Scans a session's folder, restores it from a snapshot, and packs a new snapshot."""

from __future__ import annotations

import hashlib
import os
import stat
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from api_client.contract.session_files import SessionFilesTooLarge
from worker.files import recording
from worker.files.folder_trees import MOST_LEVELS
from worker.files.recent_entries import RecentEntries
from worker.files.safe_io import DIRECTORY, ensure_folder, read_below
from worker.files.session import KEPT
from worker.files.session_fence import HELD, FencedSessionFolder
from worker.plugins.object_store.objects import ObjectStoreClient, read_contents
from worker.plugins.object_store.snapshots import (
    FolderState,
    FoundFile,
    Snapshot,
    SnapshotManifest,
    StoredFile,
    build_snapshot,
)

MOST_ENTRIES = 20_000
_ATTEMPTS = "attempts"
_HERE_ONLY = frozenset({HELD, f"agent/{KEPT}"})
#: A file changed less than this many seconds ago may change again without a new change time.
_RACY_SECONDS = 0.1
_PLAIN = 0o644
_PIECE = 2**20
_OLD = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class _Seen(NamedTuple):
    """The facts that identify a version of a file, including its change time, which programs cannot set."""

    inode: int
    size: int
    modified: int
    changed: int


_known: RecentEntries[Path, dict[str, tuple[_Seen, str]]] = RecentEntries(most=256)


def scan_folder(path: Path, session: int, *, most_bytes: int = 0) -> FolderState:
    """Return the files, links and folders in a session's folder. Only changed files are read again.

    Raises ``SessionFilesTooLarge`` beyond ``most_bytes`` (0: unlimited), ``MOST_ENTRIES`` or ``MOST_LEVELS``.
    """
    before, now = _known.get(path) or {}, time.time_ns()
    seen: dict[str, tuple[_Seen, str]] = {}
    files: dict[str, FoundFile] = {}
    links: dict[str, str] = {}
    folders: set[str] = set()
    total = 0
    for number, (name, facts, folder) in enumerate(_walk(session, "")):
        leaf = name.rpartition("/")[2]
        total += facts.st_size if stat.S_ISREG(facts.st_mode) else 0
        if number >= MOST_ENTRIES or (most_bytes and total > most_bytes):
            held = f"more than {MOST_ENTRIES} files" if number >= MOST_ENTRIES else f"more than {most_bytes} bytes"
            raise SessionFilesTooLarge(f"the session's folder holds {held}")
        if stat.S_ISDIR(facts.st_mode):
            folders.add(name)
        elif stat.S_ISLNK(facts.st_mode):
            with suppress(OSError):
                links[name] = os.readlink(leaf, dir_fd=folder)
        elif stat.S_ISREG(facts.st_mode) and facts.st_nlink == 1:
            now_seen = _Seen(facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns)
            was, digest = before.get(name, (None, ""))
            if was != now_seen:
                with suppress(FileNotFoundError):
                    digest = _digest(leaf, folder)
            if digest:
                files[name] = FoundFile(digest, facts.st_size, stat.S_IMODE(facts.st_mode) & 0o777)
                if now - facts.st_ctime_ns > _RACY_SECONDS * 1e9:
                    seen[name] = (now_seen, digest)
    _known.put(path, seen)
    return FolderState(files, links, frozenset(folders))


def _walk(folder: int, above: str) -> Iterator[tuple[str, os.stat_result, int]]:
    """Yield the path, status and open parent folder of every entry. A folder comes before its content.

    Raises ``SessionFilesTooLarge`` below ``MOST_LEVELS``.
    """
    if above.count("/") > MOST_LEVELS:
        raise SessionFilesTooLarge(f"the session's folder is more than {MOST_LEVELS} levels deep")
    with os.scandir(folder) as entries:
        names = sorted(entry.name for entry in entries)
    for name in names:
        path = above + name
        if path in _HERE_ONLY or (above == f"{_ATTEMPTS}/" and name.endswith(recording.ENDINGS)):
            continue
        with suppress(FileNotFoundError):
            facts = os.stat(name, dir_fd=folder, follow_symlinks=False)
            yield path, facts, folder
            if stat.S_ISDIR(facts.st_mode):
                fd = os.open(name, DIRECTORY, dir_fd=folder)
                try:
                    yield from _walk(fd, f"{path}/")
                finally:
                    os.close(fd)


def _digest(name: str, folder: int) -> str:
    fd = os.open(name, _OLD, dir_fd=folder)
    try:
        digest = hashlib.sha256()
        while piece := os.read(fd, _PIECE):
            digest.update(piece)
        return digest.hexdigest()
    finally:
        os.close(fd)


def restore_folder(holder: FencedSessionFolder, manifest: SnapshotManifest, objects: ObjectStoreClient) -> int:
    """Make a session's folder match a snapshot. Return the number of downloaded files.

    Deliveries missing from the snapshot stay, since a finished run of this machine may be adopted.

    Raises:
        OSError: the folder cannot be written. FileNotFoundError: a later holder fenced this folder off.
        SessionFilesGone, SessionFilesAway: the object store lacks files or is unreachable.
    """
    here, wanted = scan_folder(holder.path, holder.session), manifest.folder_state
    _remove(holder, here, wanted)
    for path in sorted(wanted.folders - here.folders):
        with ExitStack() as stack, suppress(FileExistsError):
            folder, name = _above(path, holder.session, stack)
            os.mkdir(name, dir_fd=folder)
    for path, target in wanted.links.items():
        if here.links.get(path) != target:
            with ExitStack() as stack:
                folder, name = _above(path, holder.session, stack)
                draft = f"link.{os.urandom(4).hex()}"
                os.symlink(target, draft, dir_fd=holder.drafts)
                os.rename(draft, name, src_dir_fd=holder.drafts, dst_dir_fd=folder)
    lacking: dict[str, list[tuple[str, StoredFile]]] = defaultdict(list)
    for path, each in manifest.files.items():
        if here.files.get(path) != wanted.files[path]:
            lacking[each.pack].append((path, each))
    for name, each_of in lacking.items():
        found = read_contents(objects, name, [each for _, each in each_of])
        for (path, each), content in zip(each_of, found, strict=True):
            _put(holder, path, each, content)
    return sum(map(len, lacking.values()))


def _remove(holder: FencedSessionFolder, here: FolderState, wanted: FolderState) -> None:
    known = {path.split("/")[1] for path in wanted.folders if path.startswith(f"{_ATTEMPTS}/")}
    gone: set[str] = set()
    for path in sorted(here.folders | here.files.keys() | here.links.keys()):
        first, *below = path.split("/")
        if first == _ATTEMPTS and below and below[0] not in known:
            continue
        if _kind(path, here) == _kind(path, wanted) or any(str(each) in gone for each in PurePosixPath(path).parents):
            continue
        gone.add(path)
        with ExitStack() as stack:
            folder, name = _above(path, holder.session, stack)
            holder.remove_entry(name, folder)


def _kind(path: str, found: FolderState) -> str:
    return "folder" if path in found.folders else "link" if path in found.links else "file" * (path in found.files)


def _put(holder: FencedSessionFolder, path: str, each: StoredFile, content: bytes) -> None:
    with ExitStack() as stack:
        folder, name = _above(path, holder.session, stack)
        holder.replace_file(name, content, folder, durable=False)
        if each.mode != _PLAIN:
            fd = os.open(name, _OLD, dir_fd=folder)
            stack.callback(os.close, fd)
            os.fchmod(fd, each.mode)


def _above(path: str, session: int, stack: ExitStack) -> tuple[int, str]:
    *parts, name = PurePosixPath(path).parts
    folder = session
    for part in parts:
        folder = stack.enter_context(ensure_folder(folder, part))
    return folder, name


def pack_folder(
    path: Path, session: int, name: str, base: Snapshot, *, most_bytes: int, grace: float
) -> tuple[Snapshot, bytes] | None:
    """Create a new snapshot of a session's folder and its object. Return None if nothing has changed.

    ``grace`` is the time in seconds for which retired objects are kept. Raises ``SessionFilesTooLarge``.
    """
    found = scan_folder(path, session, most_bytes=most_bytes)
    if found == base.manifest.folder_state:
        return None

    def content_of(name: str) -> bytes | None:
        with suppress(OSError):
            return read_below(name, session, most_bytes or 2**62)
        return None

    return build_snapshot(name, found, base, content_of, now=time.time(), grace=grace)
