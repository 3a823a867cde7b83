"""The memory that agents of this process may use, according to machine and control groups."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator
from pathlib import Path


@functools.cache
def usable_memory(own: Path = Path("/proc/self/cgroup"), mounted: Path = Path("/sys/fs/cgroup")) -> int:
    """Return the number of bytes of memory that this process and its children may use.

    ``own`` names the control groups of the process, version 1 or 2; each parent's limit applies too.
    """
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for file in _list_limits(own, mounted):
        with contextlib.suppress(OSError, ValueError):  # no limit, or "max"
            limits.append(int(file.read_text()))
    return min(limits)


def _list_limits(own: Path, mounted: Path) -> Iterator[Path]:
    with contextlib.suppress(OSError, ValueError):
        for line in own.read_text().splitlines():
            _, kinds, path = line.split(":", 2)
            if kinds in {"", "memory"}:
                top, name = (mounted / kinds, "memory.limit_in_bytes") if kinds else (mounted, "memory.max")
                # A container may see the host's path here: then only its top folder exists.
                groups = top / path.strip("/")
                yield from (folder / name for folder in (groups, *groups.parents) if folder.is_relative_to(top))
