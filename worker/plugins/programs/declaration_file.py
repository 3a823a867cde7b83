"""The file, read when it has changed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from worker.files.safe_io import read_changed
from worker.plugins.programs.declaration import DeclarationError

#: Largest file of a declaration, in bytes.
MAX_BYTES = 256 * 2**10
T = TypeVar("T")


def load(path: Path, read: Callable[[str, str], T]) -> T:
    """What a file declares, by ``read``, which gets its text and name. One that has not changed is not read again.

    Raises:
        DeclarationError: it cannot be read, or is wrong.
    """
    return read_changed(path, read, MAX_BYTES, DeclarationError)
