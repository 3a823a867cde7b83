"""Writes files that only this user can read."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


def write_private(path: Path, content: bytes) -> None:
    """Write a file as ``open_private`` does."""
    with open_private(path) as file:
        file.write(content)


@contextmanager
def open_private(path: Path) -> Iterator[BinaryIO]:
    """Open a file that only this user can read. It replaces an old file atomically, after a sync to disk.

    A link stays, and the file that it leads to is replaced. A device or a pipe, such as ``/dev/stdout``, is written to.
    If the block raises, the old file stays. An ``OSError`` names the file.
    """
    try:
        with path.open("wb") if path.exists() and not path.is_file() else _replace_file(path) as file:
            yield file
    except OSError as error:
        raise OSError(error.errno, f"cannot be written: {error.strerror}", str(path)) from error


@contextmanager
def _replace_file(path: Path) -> Iterator[BinaryIO]:
    path = Path(os.path.realpath(path))
    draft = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
    try:
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
