"""The CPUs that this process may use: what the scheduler allows, at most its control group's quota."""

from __future__ import annotations

import math
import os
from pathlib import Path

_QUOTA = Path("/sys/fs/cgroup/cpu.max")


def usable_cpus(quota: Path = _QUOTA) -> int:
    """The number of CPUs, at least 1. ``quota`` is the ``cpu.max`` of control groups v2: microseconds, and of how many.

    A container with ``cpus: 1.5`` counts as two.
    """
    allowed = len(os.sched_getaffinity(0))
    try:
        most, period = quota.read_text().split()
        return max(1, min(allowed, math.ceil(int(most) / int(period))))
    except (OSError, ValueError, ZeroDivisionError):  # none, or "max"
        return allowed
