"""Bringing the store of a backup into a server: a second server reads the dump, and each key is copied from it.

The second server must read the dump, and write keys in a form that the first one reads: before anything is
restored, each server that can be run here is tried with a dump without keys and one key without meaning.
"""

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
from api_client.store.connecting import connect
from worker.processes.broker import BrokerError, EmbeddedBroker, Server, find_servers

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

    Writes nothing but a mark that lives for a minute.

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
