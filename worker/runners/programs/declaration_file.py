"""The file of a declaration, read when it has changed."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from worker.runners.programs.declaration import DeclarationError

#: Largest file of a declaration, in bytes.
MAX_BYTES = 256 * 2**10
T = TypeVar("T")


def load(path: Path, read: Callable[[str, str], T]) -> T:
    """What a file declares, by ``read``, which gets its text and name. One that has not changed is not read again.

    Raises:
        DeclarationError: it cannot be read, or is wrong.
    """
    try:
        facts = path.stat()
        found: T = _load(path, read, facts.st_mtime_ns, facts.st_size)
    except OSError as error:
        raise DeclarationError(f"{path}: {error.strerror or error}") from error
    return found


@functools.lru_cache(maxsize=64)
def _load(path: Path, read: Callable[[str, str], Any], _modified: int, size: int) -> Any:
    if size > MAX_BYTES:
        raise DeclarationError(f"{path}: larger than {MAX_BYTES} bytes")
    try:
        return read(path.read_text(encoding="utf-8"), str(path))
    except UnicodeDecodeError as error:
        raise DeclarationError(f"{path}: not UTF-8: {error}") from error
