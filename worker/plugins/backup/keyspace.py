"""Restores a store's keys from a dump, which an auxiliary server loads."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import redis
from redis.exceptions import ResponseError

from api_client.contract.errors import RestoreRefused
from api_client.contract.settings import Settings
from api_client.store import namespace
from api_client.store.connecting import open_blocking_store
from worker.processes.embedded_broker import BrokerError, EmbeddedBroker, ServerBinary, find_servers

_END = b"\xff" + bytes(8)
_REMEDY = "Put the store's own kind and version of server on PATH, where the restore runs"


def require_empty_store(settings: Settings, digest: str) -> None:
    """Raise ``RestoreRefused`` if the store holds turns, unless a restore of this same backup was interrupted."""
    with open_blocking_store(settings) as target:
        namespace.require_room(target, settings.namespace, digest)


def find_restore_server(settings: Settings, head: bytes) -> ServerBinary:
    """Find an installed Redis server that can read the backup's dump and write a format that the store can read.

    ``head`` has the dump's first bytes. Raises ``RestoreRefused`` with what each server lacks, ``BrokerError`` if no
    server is installed.
    """
    lacks = []
    for server, what, key in _try_servers(head):
        if key:
            try:
                with open_blocking_store(settings) as target:
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


def explain_missing_server(settings: Settings, dump_head: bytes) -> str:
    """Return why no Redis server on this machine can restore a dump with these first bytes, or "" if one can."""
    with open_blocking_store(settings) as store:
        own = namespace.dump_key(store, settings.namespace)
    tried: list[str] = []
    with contextlib.suppress(BrokerError):
        for _, what, key in _try_servers(dump_head):
            if key and _key_format(key) <= _key_format(own):
                return ""
            tried.append(what)
    return f"no server here ({', '.join(tried) or 'none'}) restores this backup into a store like its own. {_REMEDY}"


def _try_servers(head: bytes) -> Iterator[tuple[ServerBinary, str, bytes]]:
    """Yield each installed Redis server with its name and a key that it dumped, empty if it cannot read the backup.

    ``head`` has the first bytes of the backup, which name the format.
    """
    for server in find_servers():
        with tempfile.TemporaryDirectory(prefix="helix-restore-", dir="/tmp") as folder:
            (empty := Path(folder) / "empty.rdb").write_bytes(head + _END)
            try:
                key = _dump_sample_key(_build_data_folder(empty, Path(folder)), server)
            except BrokerError:
                key = b""
        yield server, f"{server.path.name} {server.version}", key


def _key_format(key: bytes) -> int:
    return int.from_bytes(key[-10:-8], "little")


def _dump_sample_key(directory: Path, server: ServerBinary) -> bytes:
    with EmbeddedBroker(directory, server=server) as running, redis.Redis.from_url(running.url) as source:
        source.set("key", "value")
        return cast("bytes", source.dump("key"))


def restore_keys(settings: Settings, dump: Path, digest: str, server: ServerBinary) -> int:
    """Copy all keys of this installation from a dump into the store, and return the number of keys.

    Meanwhile the store is marked with the backup's ``digest``, so that no worker or relay starts. Idempotent. Raises
    ``RestoreRefused`` or ``BrokerError`` if a server cannot read keys or dump.
    """
    with (
        tempfile.TemporaryDirectory(prefix="helix-restore-", dir="/tmp") as folder,
        open_blocking_store(settings) as target,
        EmbeddedBroker(_build_data_folder(dump, Path(folder)), server=server) as running,
        redis.Redis.from_url(running.url) as source,
    ):
        return namespace.copy_keys(source, target, settings.namespace, digest)


def _build_data_folder(dump: Path, folder: Path) -> Path:
    files = folder / "broker" / "appendonlydir"
    files.mkdir(parents=True, mode=0o700)
    (files / "appendonly.aof.1.base.rdb").symlink_to(dump)
    (files / "appendonly.aof.manifest").write_text("file appendonly.aof.1.base.rdb seq 1 type b\n")
    return files.parent
