"""Threads carry their names in /proc, which Python does by itself from 3.14 on. For ``tests.lab.bench.cpu_by_thread``.

For ``tests.lab.bench.step_times`` they also stamp the steps of a turn.
"""

import os
import threading
from pathlib import Path

_RUN = threading.Thread.run


def _run(thread: threading.Thread) -> None:
    Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text(thread.name[:15], encoding="utf-8")
    _RUN(thread)


threading.Thread.run = _run  # type: ignore[method-assign, assignment]

if "BENCH_STAMPS" in os.environ:
    from tests.lab.bench import stamps

    stamps.begin()
