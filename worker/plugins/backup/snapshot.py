"""Takes a snapshot of the store like a replica (``PSYNC``), which needs only the right ``+psync``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, BinaryIO

from redis.exceptions import RedisError

from api_client.contract.settings import Settings
from api_client.store.connecting import get_socket, open_blocking_store
from worker.plugins.backup.archive import BackupError

_ASK = b"*3\r\n$5\r\nPSYNC\r\n$1\r\n?\r\n$2\r\n-1\r\n"
#: Longest silence of the server, which sends a keep-alive every ten seconds.
_SILENCE_SECONDS = 60.0
_CHUNK = 2**20


def take_snapshot(settings: Settings, target: Path) -> int:
    """Write a dump of the store (RDB) into a new private file, and return the size in bytes. Raises ``BackupError``."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    with os.fdopen(os.open(target, flags, 0o600), "wb") as file:
        try:
            with open_blocking_store(settings) as store:
                connection: Any = store.connection_pool.get_connection()
                try:
                    return _receive_dump(get_socket(connection), file)
                finally:
                    connection.disconnect()
        except (RedisError, TimeoutError, EOFError) as error:
            raise BackupError(f"the store broke off its dump ({type(error).__name__}: {error})") from error


def _receive_dump(connection: Any, file: BinaryIO) -> int:
    connection.settimeout(_SILENCE_SECONDS)
    connection.sendall(_ASK)
    with connection.makefile("rb") as answer:
        line = _read_line(answer)
        if not line.startswith(b"+"):
            raise BackupError(_explain_refusal(line[1:].decode(errors="replace")))
        line = _read_line(answer)
        if not line.startswith(b"$"):
            raise BackupError(_explain_refusal(line[1:].decode(errors="replace")))
        size = left = int(line[1:])
        while left:
            chunk = answer.read(min(left, _CHUNK))
            if not chunk:
                raise EOFError("the connection ended")
            file.write(chunk)
            left -= len(chunk)
    return size


def _read_line(answer: BinaryIO) -> bytes:
    while not (line := answer.readline(1024)).strip():
        if not line:
            raise EOFError("the connection ended")
    return line.strip()


def _explain_refusal(said: str) -> str:
    if said.startswith("NOPERM"):
        return f"the store's user may not take a dump: give it +psync, or use the operator's ({said})"
    if said.startswith("ERR unknown command"):
        return "the store's server gives no dump (PSYNC); use its provider's snapshots"
    return f"the store gives no dump: {said}"
