"""Restoring a backup into an empty installation. It may be killed at any line; the same restore again finishes it.

A mark in HELIX_ROOT/.helix and one in the store say that it is not done; nothing starts on either of them.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

from api_client.contract.failpoints import reach
from api_client.contract.settings import STATE_DIR, Settings
from worker.backup.archive import Entry, Manifest, checked, contents
from worker.backup.errors import RestoreRefused
from worker.backup.keyspace import require_empty_store, restore_keys
from worker.backup.restore_mark import MARK
from worker.backup.saving import KEYS, STATE, STORE
from worker.files.safe_io import replace as put
from worker.processes.broker import EmbeddedBroker
from worker.processes.programs import state_dir

_DUMP = "restoring.rdb"


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """What was restored: keys of the store, files. ``left_alone``: settings that were here already, and stay."""

    keys: int
    files: int
    left_alone: tuple[str, ...]


def restore(settings: Settings, archive: Path) -> tuple[Manifest, Restored]:
    """Check an archive, then bring back files and store.

    Args:
        archive: the file.
        settings: without a store the embedded broker of HELIX_ROOT is started for as long as it takes.

    Raises:
        RestoreRefused: the archive is not whole, or the installation is not empty.
        OSError: something cannot be written; the same restore again goes on.
    """
    manifest = checked(archive)
    if manifest.facts["namespace"] != settings.namespace:
        raise RestoreRefused(f"the backup is of another namespace: set HELIX_NAMESPACE={manifest.facts['namespace']}")
    state = state_dir(settings)
    places = _Places(settings)
    begun = _begun(state)
    if begun not in {"", manifest.digest}:
        raise RestoreRefused(f"{state.parent} is half restored from another backup ({begun[:12]}); restore that one")
    if not begun:
        _require_room(manifest, places)
    with _running(settings) as reached:
        require_empty_store(reached, manifest.digest)
        if not begun:
            _write(state / MARK, manifest.digest.encode())
        files, left_alone = _restore_files(archive, manifest, places)
        keys = restore_keys(reached, state / _DUMP, manifest.digest)
    os.sync()
    (state / _DUMP).unlink(missing_ok=True)
    (state / MARK).unlink()
    return manifest, Restored(keys=keys, files=files, left_alone=left_alone)


def _begun(state: Path) -> str:
    try:
        return (state / MARK).read_text().strip()
    except FileNotFoundError:
        return ""


@dataclass(frozen=True, slots=True)
class _Places:
    """Where an archive's entries belong."""

    settings: Settings

    def of(self, name: str) -> Path:
        """The place of an entry, by its name in the archive."""
        first, _, rest = name.partition("/")
        root = self.settings.root
        whole = {STORE: root / STATE_DIR / _DUMP, KEYS: self.settings.keys_path}
        return whole.get(name) or (root / STATE_DIR if first == STATE else root) / rest


def _require_room(manifest: Manifest, places: _Places) -> None:
    """Refuse where a file would be replaced; settings that are there are left alone."""
    for name, entry in manifest.entries.items():
        if entry.sha256 and name != STORE and not name.startswith(f"{STATE}/") and os.path.lexists(places.of(name)):
            raise RestoreRefused(f"{places.of(name)} exists: restore into an empty HELIX_ROOT")


def _restore_files(archive: Path, manifest: Manifest, places: _Places) -> tuple[int, tuple[str, ...]]:
    folders: list[tuple[Path, Entry]] = []
    left_alone: list[str] = []
    count = 0
    for name, entry, content in contents(archive, manifest):
        place = places.of(name)
        if content is None:
            place.mkdir(parents=True, exist_ok=True)
            folders.append((place, entry))
            continue
        if name.startswith(f"{STATE}/") and place.exists():
            left_alone.append(str(place))
            continue
        place.parent.mkdir(parents=True, exist_ok=True)
        _put(place, content, entry)
        count += 1
        reach("restore.file")
    for place, entry in reversed(folders):
        place.chmod(entry.mode)
        os.utime(place, ns=(entry.mtime_ns, entry.mtime_ns))
    return count, tuple(left_alone)


def _put(place: Path, content: IO[bytes], entry: Entry) -> None:
    """Put a file in its place, whole. A draft that a kill left is written again under the same name."""
    draft = place.with_name(f".{place.name[:200]}.restoring")
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "wb") as file:
        shutil.copyfileobj(content, file, 2**20)
        os.fchmod(file.fileno(), entry.mode)
    os.utime(draft, ns=(entry.mtime_ns, entry.mtime_ns))
    draft.replace(place)


def _write(path: Path, content: bytes) -> None:
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        put(path.name, content, folder)
        os.fsync(folder)
    finally:
        os.close(folder)


@contextlib.contextmanager
def _running(settings: Settings) -> Iterator[Settings]:
    """The settings with a store that answers: the one that is set, or the embedded broker of HELIX_ROOT."""
    if settings.store_url:
        yield settings
        return
    with EmbeddedBroker(state_dir(settings) / "broker", durability=settings.durability) as broker:
        yield replace(settings, broker_url=broker.url, store_url=broker.url)
