"""Changes Python's defaults to save memory and time. Imports nothing expensive."""

from __future__ import annotations

import contextlib
import gc
import resource
import sys
from collections.abc import Iterator

#: Packages that libraries import if installed (structlog for colours, redis for metrics), unused here.
_UNUSED = ("rich", "opentelemetry")


def block_unused_packages() -> None:
    """Block imports of packages that this process does not need, to save memory and CPU time."""
    for name in _UNUSED:
        sys.modules.setdefault(name, None)  # type: ignore[arg-type] # None: not to be found


@contextlib.contextmanager
def import_without_unused() -> Iterator[None]:
    """Block imports of unneeded packages within the ``with`` block."""
    left_out = [name for name in _UNUSED if name not in sys.modules]
    block_unused_packages()
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


def raise_open_file_limit() -> None:
    """Raise the soft limit of open files to the hard limit, because every agent needs three files."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):  # "unlimited" is more than some systems grant
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
