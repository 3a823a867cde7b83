"""Loads declaration files, with a cache for unchanged files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from worker.files.safe_io import read_cached
from worker.plugins.programs.declaration import DeclarationError

MAX_BYTES = 256 * 2**10
T = TypeVar("T")


def load_declaration(path: Path, read: Callable[[str, str], T]) -> T:
    """Read a declaration file and parse it with ``read``. Cache the result until the file changes.

    Raises ``DeclarationError``.
    """
    return read_cached(path, read, MAX_BYTES, DeclarationError)
