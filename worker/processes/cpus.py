"""The number of CPUs that this process may use according to scheduler and control group."""

from __future__ import annotations

import math
import os
from pathlib import Path

_QUOTA = Path("/sys/fs/cgroup/cpu.max")


def usable_cpus(quota: Path = _QUOTA) -> int:
    """Return the number of CPUs that this process may use, at least 1. A quota of 1.5 CPUs counts as two.

    ``quota`` is the file ``cpu.max`` of control groups v2.
    """
    allowed = len(os.sched_getaffinity(0))
    try:
        most, period = quota.read_text().split()
        return max(1, min(allowed, math.ceil(int(most) / int(period))))
    except (OSError, ValueError, ZeroDivisionError):  # no quota, or "max"
        return allowed
