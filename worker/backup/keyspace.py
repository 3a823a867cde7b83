"""Bringing the store of a backup into a server: a second server reads the dump, and each key is copied from it.

The second server must read the dump, and write keys in a form that the first one reads: before anything is restored,
each server that can be run here is tried with a dump without keys and one key without meaning.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, cast

import redis
from redis.exceptions import ResponseError

from api_client.contract.failpoints import reach
from api_client.contract.keys import Keys
from api_client.contract.settings import Settings
from api_client.store import shards
from api_client.store.connecting import connect
from worker.backup.errors import RestoreRefused
from worker.processes.broker import BrokerError, EmbeddedBroker, Server, find_servers

_BATCH = 200
_OTHER_VERSION = "version or checksum"
#: The end of a dump without a checksum.
_END = b"\xff" + bytes(8)
_REMEDY = "Put the store's own kind and version of server on PATH, where the restore runs"


def require_empty_store(settings: Settings, digest: str) -> None:
    """Refuse a store with turns, unless this very backup was half restored into it.

    Raises:
        RestoreRefused: says what to do.
    """
    with connect(settings) as target:
        _require_room(target, Keys(settings.namespace), digest)


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
                _try_key(settings, key)
            except ResponseError as error:
                if _OTHER_VERSION not in str(error):
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
        own = cast("bytes", store.dump(Keys(settings.namespace).installation))
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


def _try_key(settings: Settings, key: bytes) -> None:
    """Raises ``ResponseError``: the store's server does not read this key."""
    name = Keys(settings.namespace).probe("restore")
    with connect(settings) as target:
        target.restore(name, 1000, key, replace=True)
        target.delete(name)


def restore_keys(settings: Settings, dump: Path, digest: str, server: Server) -> int:
    """Copy every key of the namespace from a dump into the store; returns how many.

    The store says from the first key to the last which backup it is being restored from, and no worker or relay starts
    on it meanwhile. Doing it again changes nothing.

    Args:
        settings: with a store.
        dump: the store of the backup.
        digest: of the backup.
        server: of ``fitting_server``.

    Raises:
        RestoreRefused: the store's server does not read what ours writes.
        BrokerError: ours does not read the dump.
    """
    keys = Keys(settings.namespace)
    with tempfile.TemporaryDirectory(prefix="helix-restore-", dir="/tmp") as folder, connect(settings) as target:
        target.hset(keys.installation, shards.RESTORING, digest)
        with (
            EmbeddedBroker(_loadable(dump, Path(folder)), server=server) as running,
            redis.Redis.from_url(running.url) as source,
        ):
            last, passing = (
                keys.installation.encode(),
                {name.encode() for name in (keys.workers, keys.reapers, keys.written)},
            )
            count = 0
            found = (name for name in source.scan_iter(match=f"{_literal(settings.namespace)}:*", count=1000))
            for batch in _batches(name for name in found if name != last and name not in passing):
                count += _copy(source, target, batch)
                reach("restore.keys")
            if not _copy(source, target, [last]):  # with it the mark goes
                target.delete(last)
            return count + 1


def _literal(namespace: str) -> str:
    return "".join(f"\\{letter}" if letter in r"*?[]^\\" else letter for letter in namespace)


def _require_room(target: redis.Redis, keys: Keys, digest: str) -> None:
    begun = target.hget(keys.installation, shards.RESTORING)
    if begun is not None:
        if (other := bytes(cast("bytes", begun)).decode()) != digest:
            raise RestoreRefused(
                f"the store is half restored from another backup, {other[:12]}; restore that, or take an empty store"
            )
        return
    pattern = f"{_literal(keys.namespace)}:*"
    looked_at = {name.encode() for name in (keys.installation, keys.written)}  # a look at an empty store leaves these
    found = (name for name in target.scan_iter(match=pattern, count=1000) if name not in looked_at)
    if there := list(islice(found, 1)):
        raise RestoreRefused(
            f"the store is not empty ({there[0].decode(errors='replace')[:60]}): stop all workers and relays, and take"
            " an empty server"
        )


def _loadable(dump: Path, folder: Path) -> Path:
    """A data folder in which a server finds the dump as the base of its append-only file."""
    files = folder / "broker" / "appendonlydir"
    files.mkdir(parents=True, mode=0o700)
    (files / "appendonly.aof.1.base.rdb").symlink_to(dump)
    (files / "appendonly.aof.manifest").write_text("file appendonly.aof.1.base.rdb seq 1 type b\n")
    return files.parent


def _batches(names: Iterable[bytes]) -> Iterator[list[bytes]]:
    names = iter(names)
    while batch := list(islice(names, _BATCH)):
        yield batch


def _copy(source: redis.Redis, target: redis.Redis, names: list[bytes]) -> int:
    reading, writing = source.pipeline(transaction=False), target.pipeline(transaction=False)
    for name in names:
        reading.dump(name)
        reading.execute_command("PEXPIRETIME", name)  # type: ignore[no-untyped-call]
    answers: list[Any] = reading.execute()
    count = 0
    for name, content, until in zip(names, answers[::2], answers[1::2], strict=True):
        if content is not None:
            count += 1
            writing.restore(name, max(0, until), content, replace=True, absttl=until > 0)
    try:
        writing.execute()
    except ResponseError as error:
        if _OTHER_VERSION in str(error):
            raise RestoreRefused(
                f"the store's server does not read what ours writes ({error}); take one as new as ours"
            ) from error
        raise
    return count
