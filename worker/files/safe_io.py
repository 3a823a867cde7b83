"""Reading and writing in folders that agents write in too: nothing follows a link, and every file appears whole."""

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

#: How a machine answers whose disk takes no writes, or that is short of something: no fault of what it works on.
SHORT_OF = frozenset(
    {*(errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE), *(errno.EMFILE, errno.ENFILE, errno.ENOMEM)}
)
#: How a folder is opened.
DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@contextlib.contextmanager
def opened(path: Path | str, parent: int | None = None) -> Iterator[int]:
    """A folder, held open so that nobody can swap it; a link is refused.

    Raises:
        OSError: there is no such folder, or a link in its place.
    """
    fd = os.open(path, DIRECTORY, dir_fd=parent)
    try:
        yield fd
    finally:
        os.close(fd)


def found(name: Path | str, parent: int | None = None) -> int | None:
    """A folder, opened, which is to be closed; None when there is none. Raises ``OSError``: a link is in its place."""
    try:
        return os.open(name, DIRECTORY, dir_fd=parent)
    except FileNotFoundError:
        return None


@contextlib.contextmanager
def made(parent: int, name: str, *, missing: bool = False) -> Iterator[int]:
    """A folder below ``parent``, made when it is missing; ``missing`` says that it is, and saves looking.

    Raises:
        OSError: it cannot be made, or there is something else in its place.
    """
    fd = None if missing else found(name, parent)
    if fd is None:
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, dir_fd=parent)
        fd = os.open(name, DIRECTORY, dir_fd=parent)
    try:
        yield fd
    finally:
        os.close(fd)


def read(name: str, parent: int, limit: int) -> bytes:
    """The content of a regular file with a single name.

    Raises:
        OSError: there is none, it is not a regular file, has another name, or is larger than ``limit`` bytes.
    """
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
                break  # asked for more than there was: it needs no further call to know that this is its end
            asked = limit + 1 - len(content)
    finally:
        os.close(fd)
    if len(content) > limit:
        raise OSError(f"larger than {limit} bytes")
    return content


def read_below(path: str, folder: int, limit: int) -> bytes:
    """As ``read``, of a file below an open folder, by a way that holds no link."""
    *folders, name = Path(path).parts
    with contextlib.ExitStack() as stack:
        for step in folders:
            folder = stack.enter_context(opened(step, folder))
        return read(name, folder, limit)


def read_changed(path: Path, reader: Callable[[str, str], T], most: int, wrong: type[Exception]) -> T:
    """What ``reader`` makes of a file's text and name. A file that has not changed is not read again.

    Raises:
        wrong: it cannot be read, is larger than ``most`` bytes, or not UTF-8; and what ``reader`` raises.
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


def write(name: str, content: bytes, parent: int, *, durable: bool = True) -> None:
    """Write a file that nobody looks at yet. ``durable`` waits for the disk; the folder itself is not synced.

    Raises:
        OSError: it cannot be written, or there is one of this name: what was written of it is removed.
    """
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


def replace(name: str, content: bytes, parent: int, *, durable: bool = True, by_way_of: int | None = None) -> None:
    """Write a file, whole or not at all. ``durable`` waits for the disk; the folder itself is not synced.

    Until it is whole it is in the folder ``by_way_of`` (``parent`` when None), which is on the same file system.

    Raises:
        OSError: it cannot be written; what was there before is still there.
    """
    draft, drafts = f".{name}.{random.getrandbits(64):x}", parent if by_way_of is None else by_way_of
    write(draft, content, drafts, durable=durable)
    try:
        os.replace(draft, name, src_dir_fd=drafts, dst_dir_fd=parent)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(draft, dir_fd=drafts)
        raise
