"""The memory that this process may use according to machine and control group."""

from __future__ import annotations

import functools
import os
from pathlib import Path

_LIMIT = Path("/sys/fs/cgroup/memory.max")


@functools.cache
def usable_memory(limit: Path = _LIMIT) -> int:
    """Return the number of bytes of memory that this process and its children may use.

    ``limit`` is the file ``memory.max`` of control groups v2.
    """
    installed = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        return min(installed, int(limit.read_text()))
    except (OSError, ValueError):  # no limit, or "max"
        return installed
