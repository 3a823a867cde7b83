"""Backs up a running installation: first the store, then the files, so that no file of the store is missing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from api_client.contract.phase_folders import PHASES
from api_client.contract.settings import STATE_DIR, Settings
from worker.files.folder_clearing import GONE
from worker.files.session_fence import HELD
from worker.plugins.backup.archive import HEAD_BYTES, ArchiveWriter
from worker.plugins.backup.folder_saving import save_file, save_folder
from worker.plugins.backup.keyspace import explain_missing_server
from worker.plugins.backup.snapshot import take_snapshot

STORE, KEYS, STATE, ROOT = "store.rdb", "keys.json", "state", "root"
#: The standard error of an MCP server, which may hold the server's credentials.
SERVER_LOG = "stderr.log"
#: Entries of HELIX_ROOT/.helix that belong to running processes and are created again.
NOT_KEPT = {"broker", "logs", "run.json", "operator-token", "restoring", "flower"}


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupParts:
    """The files and settings that a backup contains besides the store. Secrets in ``settings`` are masked."""

    phase_directories: Iterable[str]
    input_files: Iterable[Path]
    settings: list[dict[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedArchive:
    """Facts about a finished backup archive.

    Attributes:
        at: time of the store's snapshot, in seconds since the epoch.
        left_out: number of links, sockets, pipes and very deep folders that were skipped.
        lacking: why this machine could not restore the archive; empty if it could.
    """

    digest: str
    at: float
    files: int
    bytes: int
    left_out: int
    lacking: str


def save_installation(settings: Settings, target: Path, look: Callable[[], BackupParts]) -> SavedArchive:
    """Back up an installation into a new archive, and return facts about the archive.

    ``look`` lists the parts besides the store, and is called after the store's snapshot. Raises ``BackupError``.
    """
    dump = target.with_name(f".{target.name}.{STORE}")
    dump.unlink(missing_ok=True)  # left by a killed backup
    try:
        with ArchiveWriter(target) as archive:
            at = time.time()
            take_snapshot(settings, dump)
            save_file(archive, dump, STORE)
            with dump.open("rb") as file:
                lacking = explain_missing_server(settings, file.read(HEAD_BYTES))
            dump.unlink()
            wanted = look()
            left_out = _save_files(archive, settings, wanted)
            facts = {"at": at, "namespace": settings.namespace, "root": str(settings.root), "settings": wanted.settings}
            digest = archive.write_manifest(facts)
            files = [entry for entry in archive.entries.values() if entry.sha256]
            size = sum(entry.size for entry in files)
            return SavedArchive(digest=digest, at=at, files=len(files), bytes=size, left_out=left_out, lacking=lacking)
    finally:
        dump.unlink(missing_ok=True)


def _save_files(archive: ArchiveWriter, settings: Settings, wanted: BackupParts) -> int:
    root = settings.root
    if settings.keys_path.is_file():
        save_file(archive, settings.keys_path, KEYS)
    odd = 0
    if (state := root / STATE_DIR).is_dir():
        odd += save_folder(archive, state, STATE, lambda path: _is_left_out(settings, path))
    if (projects := root / "projects").is_dir():
        odd += save_folder(archive, projects, f"{ROOT}/projects", _is_temporary)
    for directory in sorted(set(wanted.phase_directories)):
        odd += _save_phases(archive, root, directory)
    for path in sorted(set(wanted.input_files)):
        name = f"{ROOT}/{path.relative_to(root)}"
        if path.is_file() and name not in archive.entries:
            save_file(archive, path, name)
    return odd


def _is_left_out(settings: Settings, path: Path) -> bool:
    """Return True for files of running processes, and for files that would reveal the secrets in the store's dump."""
    state = settings.root / STATE_DIR
    if path in {settings.keys_path, settings.secrets_key_path}:
        return True
    return (path.parent == state and _is_runtime_file(path)) or path.match(f"{STATE_DIR}/tools/*/{SERVER_LOG}")


def _is_runtime_file(path: Path) -> bool:
    return path.name in NOT_KEPT or path.suffix in {".lock", ".ready", ".log"} or path.name.startswith("flower.")


def _is_temporary(path: Path) -> bool:
    return path.name == HELD or path.name.startswith(GONE)


def _save_phases(archive: ArchiveWriter, root: Path, directory: str) -> int:
    folder = root / directory
    if not folder.is_dir():
        return 0
    facts, name = folder.stat(), f"{ROOT}/{PurePosixPath(directory)}"  # normalised: callers may have written "a//b"
    archive.add_folder(name, mode=facts.st_mode, mtime_ns=facts.st_mtime_ns)
    if (order := folder / "phases.yaml").is_file():
        save_file(archive, order, f"{name}/phases.yaml")
    phases = folder / PHASES
    return save_folder(archive, phases, f"{name}/{PHASES}", _is_temporary) if phases.is_dir() else 0
