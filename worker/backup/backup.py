"""A backup: how one is made, and how it is brought back into an empty installation."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import IO, Any, BinaryIO, cast

import redis
from redis.exceptions import RedisError, ResponseError

from api_client.contract.failpoints import reach
from api_client.contract.issues import RestoreRefused
from api_client.contract.phases import PHASES
from api_client.contract.settings import STATE_DIR, Settings
from api_client.store import namespace
from api_client.store.connecting import connect, socket_of
from worker.backup.archive import (
    HEAD_BYTES,
    ArchiveEntry,
    ArchiveWriter,
    BackupFailed,
    Manifest,
    checked,
    contents,
    save_file,
    save_folder,
)
from worker.backup.restore_mark import MARK
from worker.files.safe_io import made, opened
from worker.files.safe_io import replace as put
from worker.files.session import GONE
from worker.files.workspace import HELD
from worker.processes.broker import BrokerError, EmbeddedBroker, Server, find_servers
from worker.processes.programs import state_dir

# Taking a backup of an installation while it runs.
#
# First the store, at one moment, then the files: whatever the store of that moment names is in the files already.
# They may be newer than the store, as after a loss of power; turns that were at work are carried out again.

STORE, KEYS, STATE, ROOT = "store.rdb", "keys.json", "state", "root"
#: Of HELIX_ROOT/.helix: what belongs to the running processes, and is made again.
NOT_KEPT = {"broker", "logs", "run.json", "operator-token", "restoring", "flower"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Parts of an installation besides the store.

    Attributes:
        phase_directories: folders with phases, relative to HELIX_ROOT.
        input_files: what unfinished phases read, absolute.
        settings: each setting with value and origin, for people; secrets are masked.
    """

    phase_directories: Iterable[str]
    input_files: Iterable[Path]
    settings: list[dict[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """An archive that was made: its checksum, the store's moment (seconds since the epoch), files, bytes of them.

    ``left_out``: links, sockets and pipes that agents left. ``lacking``: why no server here could restore it; or empty.
    """

    digest: str
    at: float
    files: int
    bytes: int
    left_out: int
    lacking: str


def save(settings: Settings, target: Path, look: Callable[[], Wanted]) -> Saved:
    """Take a backup into a new file. ``look`` is asked after the store's moment.

    Raises:
        BackupFailed: there is a file already, or the store gives no dump. OSError: something cannot be read or written.
    """
    dump = target.with_name(f".{target.name}.{STORE}")
    dump.unlink(missing_ok=True)  # of one that was killed
    try:
        with ArchiveWriter(target) as archive:
            at = time.time()
            take_snapshot(settings, dump)
            save_file(archive, dump, STORE)
            with dump.open("rb") as file:
                lacking = what_a_restore_lacks(settings, file.read(HEAD_BYTES))
            dump.unlink()
            wanted = look()
            left_out = _save_files(archive, settings, wanted)
            digest = archive.seal(_facts(settings, wanted, at))
            files = [entry for entry in archive.entries.values() if entry.sha256]
            size = sum(entry.size for entry in files)
            return Saved(digest=digest, at=at, files=len(files), bytes=size, left_out=left_out, lacking=lacking)
    finally:
        dump.unlink(missing_ok=True)


def _facts(settings: Settings, wanted: Wanted, at: float) -> dict[str, Any]:
    return {"at": at, "namespace": settings.namespace, "root": str(settings.root), "settings": wanted.settings}


def _save_files(archive: ArchiveWriter, settings: Settings, wanted: Wanted) -> int:
    root = settings.root
    if settings.keys_path.is_file():
        save_file(archive, settings.keys_path, KEYS)
    odd = 0
    if (state := root / STATE_DIR).is_dir():
        odd += save_folder(
            archive,
            state,
            STATE,
            lambda path: path == settings.keys_path or (path.parent == state and _is_running(path)),
        )
    if (projects := root / "projects").is_dir():
        odd += save_folder(archive, projects, f"{ROOT}/projects", _is_passing)
    for directory in sorted(set(wanted.phase_directories)):
        odd += _save_phases(archive, root, directory)
    for path in sorted(set(wanted.input_files)):
        name = f"{ROOT}/{path.relative_to(root)}"
        if path.is_file() and name not in archive.entries:
            save_file(archive, path, name)
    return odd


def _is_running(path: Path) -> bool:
    """Return whether this belongs to running processes alone."""
    return path.name in NOT_KEPT or path.suffix in {".lock", ".ready", ".log"} or path.name.startswith("flower.")


def _is_passing(path: Path) -> bool:
    """Return whether this is a holder's folder, or what a clearing put aside."""
    return path.name == HELD or path.name.startswith(GONE)


def _save_phases(archive: ArchiveWriter, root: Path, directory: str) -> int:
    folder = root / directory
    if not folder.is_dir():
        return 0
    facts, name = folder.stat(), f"{ROOT}/{PurePosixPath(directory)}"  # no caller's "a//b"
    archive.add_folder(name, mode=facts.st_mode, mtime_ns=facts.st_mtime_ns)
    if (order := folder / "phases.yaml").is_file():
        save_file(archive, order, f"{name}/phases.yaml")
    phases = folder / PHASES
    return save_folder(archive, phases, f"{name}/{PHASES}", _is_passing) if phases.is_dir() else 0


# Restoring a backup into an empty installation. It may be killed at any line; the same restore again finishes it.
#
# A mark in HELIX_ROOT/.helix and one in the store say that it is not done; nothing starts on either of them.

_DUMP = "restoring.rdb"


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """The result of a restore: keys of the store, files. ``left_alone``: settings that were here already, and stay."""

    keys: int
    files: int
    left_alone: tuple[str, ...]


def restore(
    settings: Settings, archive: Path, alone: Callable[[], contextlib.AbstractContextManager[object]]
) -> tuple[Manifest, Restored]:
    """Check an archive, and that the place is empty and the store's server fits; then bring back files and store.

    What is refused leaves the place as it was: no file, no folder and no mark is made before every check has passed.

    Args:
        archive: the file.
        settings: without a store the embedded broker of HELIX_ROOT is started for as long as it takes.
        alone: holds what keeps others off HELIX_ROOT; entered once the checks that need no file have passed.

    Raises:
        RestoreRefused: the archive is not whole, the installation is not empty, or no server here fits the store's.
        OSError: something cannot be written; the same restore again goes on.
    """
    manifest = checked(archive, STORE)
    if manifest.facts["namespace"] != settings.namespace:
        raise RestoreRefused(f"the backup is of another namespace: set HELIX_NAMESPACE={manifest.facts['namespace']}")
    state, places = settings.root / STATE_DIR, _Places(settings)
    begun = _begun(state)
    if begun not in {"", manifest.digest}:
        raise RestoreRefused(f"{state.parent} is half restored from another backup ({begun[:12]}); restore that one")
    _require_places(manifest, places, empty=not begun)
    with _looked_at(settings) as store:
        require_empty_store(store, manifest.digest)
        server = fitting_server(store, manifest.store_head)
    with alone(), _running(settings) as reached:
        require_empty_store(reached, manifest.digest)
        if not begun:
            _write(state_dir(settings) / MARK, manifest.digest.encode())
        files, left_alone = _restore_files(archive, manifest, places)
        keys = restore_keys(reached, state / _DUMP, manifest.digest, server)
    os.sync()
    (state / _DUMP).unlink(missing_ok=True)
    (state / MARK).unlink()
    return manifest, Restored(keys=keys, files=files, left_alone=left_alone)


def _begun(state: Path) -> str:
    try:
        return "" if state.is_symlink() else (state / MARK).read_text().strip()
    except FileNotFoundError:
        return ""


@dataclass(frozen=True, slots=True)
class _Places:
    """The places of an archive's entries."""

    settings: Settings

    def of(self, name: str) -> Path:
        """The place of an entry, by its name in the archive."""
        first, _, rest = name.partition("/")
        root = self.settings.root
        whole = {STORE: root / STATE_DIR / _DUMP, KEYS: self.settings.keys_path}
        folders = {STATE: root / STATE_DIR, ROOT: root}
        if name not in whole and (first not in folders or (first == STATE and rest.partition("/")[0] in NOT_KEPT)):
            raise RestoreRefused(f"no backup has a file {name[:80]!r}; take another one")
        return whole.get(name) or folders[first] / rest

    @contextlib.contextmanager
    def opened(self, place: Path) -> Iterator[int]:
        """Open the folder at a place; it is made where it is missing. Below HELIX_ROOT no link is followed.

        Raises:
            OSError: it cannot be made, or there is a link or something else in its way.
        """
        base = self.settings.root if place.is_relative_to(self.settings.root) else place  # a keys' file elsewhere
        base.mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as stack:
            folder = os.open(base, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            stack.callback(os.close, folder)
            for part in place.relative_to(base).parts:
                folder = stack.enter_context(made(folder, part))
            yield folder


def _require_places(manifest: Manifest, places: _Places, *, empty: bool) -> None:
    """Refuse what cannot be put in place: two entries at one place, a file that is to be a folder, no room for all.

    Where it must be ``empty``, also where a file would be replaced; settings that are there are left alone.
    """
    of = {name: places.of(name) for name in manifest.entries}
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


def _restore_files(archive: Path, manifest: Manifest, places: _Places) -> tuple[int, tuple[str, ...]]:
    folders: list[tuple[Path, ArchiveEntry]] = []
    left_alone: list[str] = []
    count = 0
    for name, entry, content in contents(archive, manifest):
        place = places.of(name)
        with places.opened(place if content is None else place.parent) as folder:
            if content is None:
                folders.append((place, entry))
            elif name.startswith(f"{STATE}/") and os.access(place.name, os.F_OK, dir_fd=folder, follow_symlinks=False):
                left_alone.append(str(place))
            else:
                _put(place.name, folder, content, entry)
                count += 1
                reach("restore.file")
    for place, entry in reversed(folders):
        with places.opened(place) as folder:
            os.fchmod(folder, entry.mode)
            os.utime(folder, ns=(entry.mtime_ns, entry.mtime_ns))
    return count, tuple(left_alone)


def _put(name: str, folder: int, content: IO[bytes], entry: ArchiveEntry) -> None:
    """Put a file in its place in an open folder, whole. It replaces a draft that a kill left."""
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


def _write(path: Path, content: bytes) -> None:
    with opened(path.parent) as folder:
        put(path.name, content, folder)
        os.fsync(folder)


@contextlib.contextmanager
def _looked_at(settings: Settings) -> Iterator[Settings]:
    """The settings with the store, or a copy of the embedded broker's data, so that a look leaves no trace there."""
    with tempfile.TemporaryDirectory(prefix="helix-restore-", dir="/tmp") as folder:
        kept, copy = settings.root / STATE_DIR / "broker" / "appendonlydir", Path(folder) / STATE_DIR / "broker"
        if not settings.store_url:
            copy.mkdir(parents=True)
            if kept.is_dir():
                shutil.copytree(kept, copy / kept.name)
        with _running(settings if settings.store_url else replace(settings, root=Path(folder))) as reached:
            yield reached


@contextlib.contextmanager
def _running(settings: Settings) -> Iterator[Settings]:
    """The settings with a store that answers: the one that is set, or the embedded broker of HELIX_ROOT."""
    if settings.store_url:
        yield settings
        return
    with EmbeddedBroker(state_dir(settings) / "broker", durability=settings.durability) as broker:
        yield replace(settings, broker_url=broker.url, store_url=broker.url)


# The store at one moment, asked for as a replica asks: all that was acknowledged before is in it.
#
# The server forks and sends what it had at that moment (``PSYNC``), and goes on answering. Nothing is configured, no
# file of the server is read, and of its rights only ``+psync`` is needed (compose/broker/users.acl: the operator).

_ASK = b"*3\r\n$5\r\nPSYNC\r\n$1\r\n?\r\n$2\r\n-1\r\n"
#: The server says a sign of life every ten seconds while it works.
_SILENCE_SECONDS = 60.0
_CHUNK = 2**20


def take_snapshot(settings: Settings, target: Path) -> int:
    """Write the store's content as a server's own dump (RDB) into a new file of this user's alone; returns its bytes.

    Raises:
        BackupFailed: the server refuses, or breaks off. OSError: the file cannot be written.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    with os.fdopen(os.open(target, flags, 0o600), "wb") as file:
        try:
            with connect(settings) as store:
                connection: Any = store.connection_pool.get_connection()
                try:
                    return _receive(socket_of(connection), file)
                finally:
                    connection.disconnect()
        except (RedisError, TimeoutError, EOFError) as error:
            raise BackupFailed(f"the store broke off its dump ({type(error).__name__}: {error})") from error


def _receive(connection: Any, file: BinaryIO) -> int:
    connection.settimeout(_SILENCE_SECONDS)
    connection.sendall(_ASK)
    with connection.makefile("rb") as answer:
        line = _line(answer)
        if not line.startswith(b"+"):
            raise BackupFailed(_why(line[1:].decode(errors="replace")))
        line = _line(answer)
        if not line.startswith(b"$"):
            raise BackupFailed(_why(line[1:].decode(errors="replace")))
        size = left = int(line[1:])
        while left:
            chunk = answer.read(min(left, _CHUNK))
            if not chunk:
                raise EOFError("the connection ended")
            file.write(chunk)
            left -= len(chunk)
    return size


def _line(answer: BinaryIO) -> bytes:
    """The next line that is not a sign of life."""
    while not (line := answer.readline(1024)).strip():
        if not line:
            raise EOFError("the connection ended")
    return line.strip()


def _why(said: str) -> str:
    if said.startswith("NOPERM"):
        return f"the store's user may not take a dump: give it +psync, or use the operator's ({said})"
    if said.startswith("ERR unknown command"):
        return "the store's server gives no dump (PSYNC); use its provider's snapshots"
    return f"the store gives no dump: {said}"


# Bringing the store of a backup into a server: a second server reads the dump, and each key is copied from it.
#
# The second server must read the dump, and write keys in a form that the first one reads: before anything is
# restored, each server that can be run here is tried with a dump without keys and one key without meaning.

#: The end of a dump without a checksum.
_END = b"\xff" + bytes(8)
_REMEDY = "Put the store's own kind and version of server on PATH, where the restore runs"


def require_empty_store(settings: Settings, digest: str) -> None:
    """Refuse a store with turns, unless this very backup was half restored into it.

    Raises:
        RestoreRefused: says what to do.
    """
    with connect(settings) as target:
        namespace.require_room(target, settings.namespace, digest)


def fitting_server(settings: Settings, head: bytes) -> Server:
    """The first server here that reads dumps that begin with ``head`` and writes keys that the store's server reads.

    It leaves nothing in the store.

    Raises:
        RestoreRefused: there is none; says what each lacks. BrokerError: there is no server here at all.
    """
    lacks = []
    for server, what, key in _tried(head):
        if key:
            try:
                with connect(settings) as target:
                    namespace.try_key(target, settings.namespace, key)
            except ResponseError as error:
                if namespace.OTHER_VERSION not in str(error):
                    raise
            else:
                return server
        lacks.append(f"the store's server is too old for what {what} writes" if key else f"{what} does not read it")
    raise RestoreRefused(
        f"no server here brings this backup ({head.decode(errors='replace')}) into the store: {'; '.join(lacks)}."
        f" {_REMEDY}"
    )


def what_a_restore_lacks(settings: Settings, head: bytes) -> str:
    """Say why no server here could load a dump that begins with ``head`` for a server like the store's; or empty.

    Reads one key of the store, and writes nothing.

    Raises:
        RedisError: the store does not answer.
    """
    with connect(settings) as store:
        own = namespace.key_of(store, settings.namespace)
    tried: list[str] = []
    with contextlib.suppress(BrokerError):
        for _, what, key in _tried(head):
            if key and _form(key) <= _form(own):
                return ""
            tried.append(what)
    return f"no server here ({', '.join(tried) or 'none'}) restores this backup into a store like its own. {_REMEDY}"


def _tried(head: bytes) -> Iterator[tuple[Server, str, bytes]]:
    """Each server here, what it is called, and a key as it writes it; empty where it reads no dump with this head."""
    for server in find_servers():
        with tempfile.TemporaryDirectory(prefix="helix-restore-", dir="/tmp") as folder:
            (empty := Path(folder) / "empty.rdb").write_bytes(head + _END)
            try:
                key = _key_of(_loadable(empty, Path(folder)), server)
            except BrokerError:
                key = b""
        yield server, f"{server.path.name} {server.version}", key


def _form(key: bytes) -> int:
    """The version of a key's form: two bytes before its checksum."""
    return int.from_bytes(key[-10:-8], "little")


def _key_of(directory: Path, server: Server) -> bytes:
    with EmbeddedBroker(directory, server=server) as running, redis.Redis.from_url(running.url) as source:
        source.set("key", "value")
        return cast("bytes", source.dump("key"))


def restore_keys(settings: Settings, dump: Path, digest: str, server: Server) -> int:
    """Copy every key of the namespace from a dump into the store of ``settings``; returns how many.

    The store says from the first key to the last which backup it is being restored from (its ``digest``), and no worker
    or relay starts on it meanwhile. Doing it again changes nothing. ``server`` is that of ``fitting_server``.

    Raises:
        RestoreRefused: the store's server does not read what ours writes. BrokerError: ours does not read the dump.
    """
    with (
        tempfile.TemporaryDirectory(prefix="helix-restore-", dir="/tmp") as folder,
        connect(settings) as target,
        EmbeddedBroker(_loadable(dump, Path(folder)), server=server) as running,
        redis.Redis.from_url(running.url) as source,
    ):
        return namespace.copy_keys(source, target, settings.namespace, digest)


def _loadable(dump: Path, folder: Path) -> Path:
    """A data folder in which a server finds the dump as the base of its append-only file."""
    files = folder / "broker" / "appendonlydir"
    files.mkdir(parents=True, mode=0o700)
    (files / "appendonly.aof.1.base.rdb").symlink_to(dump)
    (files / "appendonly.aof.manifest").write_text("file appendonly.aof.1.base.rdb seq 1 type b\n")
    return files.parent
