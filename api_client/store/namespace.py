"""Copies and checks all keys of an installation, for backups and server checks. All functions block."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, cast

import redis
from redis.exceptions import ResponseError

from api_client.contract.errors import RestoreRefused
from api_client.contract.failpoints import pass_failpoint
from api_client.contract.keys import Keys
from api_client.store.unfinished_restore import RESTORING

#: Part of a server's error for a key in a foreign format.
OTHER_VERSION = "version or checksum"
_BATCH = 200
#: Lifetime of the mark that proves writes, in milliseconds.
_WRITTEN_MS = 60_000


def write_mark(store: redis.Redis, namespace: str) -> None:
    """Write a short-lived key to prove that the store accepts writes. Raises ``RedisError``."""
    store.set(Keys(namespace).written, secrets.token_hex(8), px=_WRITTEN_MS)


def dump_key(store: redis.Redis, namespace: str) -> bytes:
    """Write a test key and return its serialised form, to test whether another server can read the format."""
    write_mark(store, namespace)
    return cast("bytes", store.dump(Keys(namespace).written))


def try_key(target: redis.Redis, namespace: str, key: bytes) -> None:
    """Restore a serialised test key and delete it. Raises ``ResponseError`` if the server cannot read the format."""
    name = Keys(namespace).probe("restore")
    target.restore(name, 1000, key, replace=True)
    target.delete(name)


def require_room(target: redis.Redis, namespace: str, digest: str) -> None:
    """Raise ``RestoreRefused`` unless the store is empty or holds an interrupted restore of the same backup."""
    keys = Keys(namespace)
    begun = target.hget(keys.installation, RESTORING)
    if begun is not None:
        if (other := bytes(cast("bytes", begun)).decode()) != digest:
            raise RestoreRefused(
                f"the store is half restored from another backup, {other[:12]}; restore that, or take an empty store"
            )
        return
    pattern = f"{_escape_pattern(keys.namespace)}:*"
    # Checking an empty store leaves these keys.
    looked_at = {name.encode() for name in (keys.installation, keys.written)}
    found = (name for name in target.scan_iter(match=pattern, count=1000) if name not in looked_at)
    if there := list(islice(found, 1)):
        raise RestoreRefused(
            f"the store is not empty ({there[0].decode(errors='replace')[:60]}): stop all workers and relays, and take"
            " an empty server"
        )


def _escape_pattern(namespace: str) -> str:
    return "".join(f"\\{letter}" if letter in r"*?[]^\\" else letter for letter in namespace)


def copy_keys(source: redis.Redis, target: redis.Redis, namespace: str, digest: str) -> int:
    """Copy an installation's keys from a backup's server into the store, and return their number.

    During the copy the store is marked with the backup's digest. Raises ``RestoreRefused`` if the server cannot read
    the keys.
    """
    keys = Keys(namespace)
    target.hset(keys.installation, RESTORING, digest)
    last, passing = keys.installation.encode(), {name.encode() for name in (keys.workers, keys.reapers, keys.written)}
    count = 0
    found = (name for name in source.scan_iter(match=f"{_escape_pattern(namespace)}:*", count=1000))
    for batch in _split_batches(name for name in found if name != last and name not in passing):
        count += _copy_batch(source, target, batch)
        pass_failpoint("restore.keys")
    facts = _copy_batch(source, target, [last])  # removes the mark as well
    if not facts:
        target.delete(last)
    return count + facts


def _split_batches(names: Iterable[bytes]) -> Iterator[list[bytes]]:
    names = iter(names)
    while batch := list(islice(names, _BATCH)):
        yield batch


def _copy_batch(source: redis.Redis, target: redis.Redis, names: list[bytes]) -> int:
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
        if OTHER_VERSION in str(error):
            raise RestoreRefused(
                f"the store's server does not read what ours writes ({error}); take one as new as ours"
            ) from error
        raise
    return count
