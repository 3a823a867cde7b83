"""The store at one moment, asked for as a replica asks: all that was acknowledged before is in it.

The server forks and sends what it had at that moment (``PSYNC``), and goes on answering. Nothing is configured, no file
of the server is read, and of its rights only ``+psync`` is needed (compose/broker/users.acl: the operator).
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

import redis
from redis.exceptions import RedisError, ResponseError

from api_client.contract.issues import HelixError, RestoreRefused
from api_client.contract.settings import Settings
from api_client.store import namespace
from api_client.store.connecting import connect, socket_of
from worker.processes.broker import BrokerError, EmbeddedBroker, Server, find_servers

# The reason why a backup cannot be taken or restored.


class BackupFailed(HelixError):
    """The backup cannot be taken; nothing was written in the place of an archive."""

    code = "backup_failed"


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
