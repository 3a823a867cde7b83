"""Restores a backup into an empty installation.

A killed restore is completed by running it again; until then marks keep workers and relay from starting.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

from api_client.contract.errors import RestoreRefused
from api_client.contract.failpoints import pass_failpoint
from api_client.contract.settings import STATE_DIR, Settings
from worker.files.safe_io import ensure_folder, open_folder
from worker.files.safe_io import replace_file as put
from worker.plugins.backup.archive import ArchiveEntry, Manifest, iterate_contents, read_manifest
from worker.plugins.backup.keyspace import find_restore_server, require_empty_store, restore_keys
from worker.plugins.backup.saving import KEYS, NOT_KEPT, ROOT, STATE, STORE
from worker.processes.embedded_broker import EmbeddedBroker
from worker.processes.own_programs import ensure_state_dir
from worker.processes.restore_mark import MARK

_DUMP = "restoring.rdb"


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreResult:
    """The numbers of restored keys and files. ``left_alone`` lists settings files that existed and were kept."""

    keys: int
    files: int
    left_alone: tuple[str, ...]


def restore_archive(
    settings: Settings, archive: Path, lock_root: Callable[[], contextlib.AbstractContextManager[object]]
) -> tuple[Manifest, RestoreResult]:
    """Verify a backup, restore it into an empty installation, and return its manifest and what was restored.

    A refused archive changes nothing: all checks come before the first write.

    Args:
        settings: without a store, the embedded broker of HELIX_ROOT runs meanwhile.
        lock_root: returns a context manager that locks HELIX_ROOT.

    Raises:
        RestoreRefused: the archive is invalid, the installation not empty, or no server fits the store.
        OSError: something cannot be written; run the same restore again.
    """
    manifest = read_manifest(archive, STORE)
    if manifest.facts["namespace"] != settings.namespace:
        raise RestoreRefused(f"the backup is of another namespace: set HELIX_NAMESPACE={manifest.facts['namespace']}")
    state, places = settings.root / STATE_DIR, _RestorePaths(settings)
    begun = _read_mark(state)
    if begun not in {"", manifest.digest}:
        raise RestoreRefused(f"{state.parent} is half restored from another backup ({begun[:12]}); restore that one")
    _check_paths(manifest, places, empty=not begun)
    with _inspectable_store(settings) as store:
        require_empty_store(store, manifest.digest)
        server = find_restore_server(store, manifest.store_head)
    with lock_root(), _reachable_store(settings) as reached:
        require_empty_store(reached, manifest.digest)
        if not begun:
            _write_durably(ensure_state_dir(settings) / MARK, manifest.digest.encode())
        files, left_alone = _restore_files(archive, manifest, places)
        keys = restore_keys(reached, state / _DUMP, manifest.digest, server)
    os.sync()
    (state / _DUMP).unlink(missing_ok=True)
    (state / MARK).unlink()
    return manifest, RestoreResult(keys=keys, files=files, left_alone=left_alone)


def _read_mark(state: Path) -> str:
    try:
        return "" if state.is_symlink() else (state / MARK).read_text().strip()
    except FileNotFoundError:
        return ""


@dataclass(frozen=True, slots=True)
class _RestorePaths:
    settings: Settings

    def resolve_path(self, name: str) -> Path:
        first, _, rest = name.partition("/")
        root = self.settings.root
        whole = {STORE: root / STATE_DIR / _DUMP, KEYS: self.settings.keys_path}
        folders = {STATE: root / STATE_DIR, ROOT: root}
        if name not in whole and (first not in folders or (first == STATE and rest.partition("/")[0] in NOT_KEPT)):
            raise RestoreRefused(f"no backup has a file {name[:80]!r}; take another one")
        return whole.get(name) or folders[first] / rest

    @contextlib.contextmanager
    def open_folder(self, place: Path) -> Iterator[int]:
        # The file of keys may be elsewhere.
        base = self.settings.root if place.is_relative_to(self.settings.root) else place
        base.mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as stack:
            folder = os.open(base, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            stack.callback(os.close, folder)
            for part in place.relative_to(base).parts:
                folder = stack.enter_context(ensure_folder(folder, part))
            yield folder


def _check_paths(manifest: Manifest, places: _RestorePaths, *, empty: bool) -> None:
    """Raise ``RestoreRefused`` if target paths conflict or the disk is too full.

    With ``empty``, existing files other than settings are an error too.
    """
    of = {name: places.resolve_path(name) for name in manifest.entries}
    files = {of[name] for name, entry in manifest.entries.items() if entry.sha256}
    if len(set(of.values())) < len(of):
        raise RestoreRefused("the archive holds two files for one place; take another one")
    fine: set[Path] = set()
    for name, place in of.items():
        replaces = place in files and name != STORE and not name.startswith(f"{STATE}/") and os.path.lexists(place)
        if empty and replaces:
            raise RestoreRefused(f"{place} exists: restore into an empty HELIX_ROOT")
        for folder in place.parents if place in files else (place, *place.parents):
            if folder in fine:
                break
            if folder.is_symlink() and places.settings.root in folder.parents:
                raise RestoreRefused(f"{folder} is a link, and a restore follows none: put a folder in its place")
            if folder in files or (os.path.lexists(folder) and not folder.is_dir()):
                raise RestoreRefused(f"{folder} is a file, and the backup has a folder there")
            fine.add(folder)
    needed, free = sum(entry.size for entry in manifest.entries.values()), shutil.disk_usage(places.settings.root).free
    if empty and needed > free:
        raise RestoreRefused(
            f"the backup unpacks to {needed / 2**20:.0f} MiB, and {places.settings.root} has room for"
            f" {free / 2**20:.0f}: make room"
        )


def _restore_files(archive: Path, manifest: Manifest, places: _RestorePaths) -> tuple[int, tuple[str, ...]]:
    folders: list[tuple[Path, ArchiveEntry]] = []
    left_alone: list[str] = []
    count = 0
    for name, entry, content in iterate_contents(archive, manifest):
        place = places.resolve_path(name)
        with places.open_folder(place if content is None else place.parent) as folder:
            if content is None:
                folders.append((place, entry))
            elif name.startswith(f"{STATE}/") and os.access(place.name, os.F_OK, dir_fd=folder, follow_symlinks=False):
                left_alone.append(str(place))
            else:
                _write_file(place.name, folder, content, entry)
                count += 1
                pass_failpoint("restore.file")
    for place, entry in reversed(folders):
        with places.open_folder(place) as folder:
            os.fchmod(folder, entry.mode)
            os.utime(folder, ns=(entry.mtime_ns, entry.mtime_ns))
    return count, tuple(left_alone)


def _write_file(name: str, folder: int, content: IO[bytes], entry: ArchiveEntry) -> None:
    draft = f".{hashlib.sha256(os.fsencode(name)).hexdigest()[:32]}.restoring"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(draft, dir_fd=folder)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(draft, flags, 0o600, dir_fd=folder), "wb") as file:
        shutil.copyfileobj(content, file, 2**20)
        file.flush()
        os.fchmod(file.fileno(), entry.mode)
        os.utime(file.fileno(), ns=(entry.mtime_ns, entry.mtime_ns))
    os.replace(draft, name, src_dir_fd=folder, dst_dir_fd=folder)


def _write_durably(path: Path, content: bytes) -> None:
    with open_folder(path.parent) as folder:
        put(path.name, content, folder)
        os.fsync(folder)


@contextlib.contextmanager
def _inspectable_store(settings: Settings) -> Iterator[Settings]:
    with tempfile.TemporaryDirectory(prefix="helix-restore-", dir="/tmp") as folder:
        kept, copy = settings.root / STATE_DIR / "broker" / "appendonlydir", Path(folder) / STATE_DIR / "broker"
        if not settings.store_url:
            copy.mkdir(parents=True)
            if kept.is_dir():
                shutil.copytree(kept, copy / kept.name)
        with _reachable_store(settings if settings.store_url else replace(settings, root=Path(folder))) as reached:
            yield reached


@contextlib.contextmanager
def _reachable_store(settings: Settings) -> Iterator[Settings]:
    """Yield settings of a running store. Start the embedded broker if no store is configured."""
    if settings.store_url:
        yield settings
        return
    with EmbeddedBroker(ensure_state_dir(settings) / "broker", durability=settings.durability) as broker:
        yield replace(settings, broker_url=broker.url, store_url=broker.url)
