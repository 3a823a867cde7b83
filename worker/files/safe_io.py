"""Reads and writes in folders that agents can change: follows no links, and replaces files atomically."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import random
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

#: Error numbers of a machine that lacks resources or cannot write, whatever the file.
SHORT_OF = frozenset(
    {*(errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE), *(errno.EMFILE, errno.ENFILE, errno.ENOMEM)}
)
DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@contextlib.contextmanager
def open_folder(path: Path | str, parent: int | None = None) -> Iterator[int]:
    """Open a folder without following a link, and yield its file descriptor. Raises ``OSError``."""
    fd = os.open(path, DIRECTORY, dir_fd=parent)
    try:
        yield fd
    finally:
        os.close(fd)


def try_open_folder(name: Path | str, parent: int | None = None) -> int | None:
    """Open a folder and return its descriptor, or None if the folder is missing. Raises ``OSError`` for a link."""
    try:
        return os.open(name, DIRECTORY, dir_fd=parent)
    except FileNotFoundError:
        return None


@contextlib.contextmanager
def ensure_folder(parent: int, name: str, *, missing: bool = False) -> Iterator[int]:
    """Open a folder below ``parent`` and yield its descriptor. Create the folder if it is missing."""
    fd = None if missing else try_open_folder(name, parent)
    if fd is None:
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, dir_fd=parent)
        fd = os.open(name, DIRECTORY, dir_fd=parent)
    try:
        yield fd
    finally:
        os.close(fd)


def read_file(name: str, parent: int, limit: int) -> bytes:
    """Return the content of a regular file. Refuses links, hard links, and files larger than ``limit`` bytes."""
    # O_NONBLOCK: opening a FIFO must not wait for a writer.
    fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=parent)
    try:
        facts = os.fstat(fd)
        if stat.S_ISDIR(facts.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not stat.S_ISREG(facts.st_mode):
            raise OSError("no regular file")
        if facts.st_nlink > 1:
            raise OSError("has another name, maybe outside the session")
        content, asked = b"", min(facts.st_size, limit) + 1
        while piece := os.read(fd, asked):
            content += piece
            if len(content) > limit or facts.st_size <= len(content) < asked:
                break  # a short read of a complete file: its end is reached
            asked = limit + 1 - len(content)
    finally:
        os.close(fd)
    if len(content) > limit:
        raise OSError(f"larger than {limit} bytes")
    return content


def read_below(path: str, folder: int, limit: int) -> bytes:
    """Return the content of a regular file below an open folder, without following links."""
    *folders, name = Path(path).parts
    with contextlib.ExitStack() as stack:
        for step in folders:
            folder = stack.enter_context(open_folder(step, folder))
        return read_file(name, folder, limit)


def read_cached(path: Path, reader: Callable[[str, str], T], most: int, wrong: type[Exception]) -> T:
    """Return the result of ``reader(text, name)`` for a file, cached until the file changes.

    Raises ``wrong`` if the file cannot be read, exceeds ``most`` bytes or is not UTF-8.
    """
    try:
        facts = path.stat()
        if facts.st_size > most:
            raise wrong(f"{path}: larger than {most} bytes")
        found: T = _read_changed(path, reader, facts.st_mtime_ns, facts.st_size)
    except OSError as error:
        raise wrong(f"{path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise wrong(f"{path}: not UTF-8: {error}") from error
    return found


@functools.lru_cache(maxsize=96)
def _read_changed(path: Path, reader: Callable[[str, str], Any], _modified: int, _size: int) -> Any:
    return reader(path.read_text(encoding="utf-8"), str(path))


def write_new_file(name: str, content: bytes, parent: int, *, durable: bool = True) -> None:
    """Write a new file. Remove it if writing fails. ``durable`` forces the content to disk."""
    fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644, dir_fd=parent)
    try:
        try:
            left = memoryview(content)
            while left:
                left = left[os.write(fd, left) :]
            if durable:
                os.fsync(fd)
        finally:
            os.close(fd)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=parent)
        raise


def replace_file(name: str, content: bytes, parent: int, *, durable: bool = True, by_way_of: int | None = None) -> None:
    """Write or replace a file atomically. ``durable`` forces the content to disk, but not the folder's entry.

    ``by_way_of`` is a folder on the same file system for the incomplete file; None means ``parent``.
    """
    draft, drafts = f".{name}.{random.getrandbits(64):x}", parent if by_way_of is None else by_way_of
    write_new_file(draft, content, drafts, durable=durable)
    try:
        os.replace(draft, name, src_dir_fd=drafts, dst_dir_fd=parent)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(draft, dir_fd=drafts)
        raise
