"""A bound on the memory that this process may take on top of what it has."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_STATUS = Path("/proc/self/status")


#: The bounds of this process before ``limited``, the innermost last.
_before: list[tuple[int, int]] = []


@contextmanager
def limited(megabytes: int) -> Iterator[None]:
    """Let this process take so many MiB more in this block: beyond them Python raises ``MemoryError``.

    The kernel bounds writable private memory (RLIMIT_DATA).
    """
    old, hard = resource.getrlimit(resource.RLIMIT_DATA)
    bounds = [bound for bound in (old, hard) if bound != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_DATA, (min([_held() + megabytes * 2**20, *bounds]), hard))
    _before.append((old, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, _before.pop())


@contextmanager
def lifted() -> Iterator[None]:
    """Take the bound back in this block: the programs that start in it have bounds that fit them."""
    if not _before:
        yield
        return
    bound = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, _before[0])
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, bound)


def _held() -> int:
    """Writable private memory of this process, in bytes."""
    try:
        lines = _STATUS.read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmData:"))
    except (OSError, StopIteration, ValueError):
        return 0
