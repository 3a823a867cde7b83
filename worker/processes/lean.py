"""Tuning of our processes against the defaults of Python. Imports nothing that costs."""

from __future__ import annotations

import contextlib
import gc
import resource
import sys
from collections.abc import Iterator

#: Packages that libraries import where they are installed (structlog for colours, redis for its metrics), unused here.
_UNUSED = ("rich", "opentelemetry")


def leave_out_unused() -> None:
    """Keep unused packages out of this process: 6 MB and 0.1 s of processor. To be called before other imports."""
    for name in _UNUSED:
        sys.modules.setdefault(name, None)  # type: ignore[arg-type] # None: not to be found


@contextlib.contextmanager
def without_unused() -> Iterator[None]:
    """Leave them out while the block imports libraries. Code that needs one later finds it.

    No garbage is looked for meanwhile: imports make next to none, and looking takes a sixth of their time.
    """
    left_out = [name for name in _UNUSED if name not in sys.modules]
    leave_out_unused()
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()
        for name in left_out:
            if sys.modules.get(name, name) is None:
                del sys.modules[name]


def lift_open_files() -> None:
    """Lift the soft limit of open files, often 1,024, to the hard one: every agent takes three."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):  # "unlimited" is more than some systems give
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
