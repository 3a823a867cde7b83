"""What worker processes report of themselves, and which of them are missing. Standard library only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

#: A worker that reported nothing for this long is gone; workers report every five seconds.
HEARD_SECONDS = 15.0


def missing(reports: Iterable[Mapping[str, Any]], now: float) -> list[Mapping[str, Any]]:
    """Workers that have gone silent, did not sign off, and were not replaced on their machine.

    A worker that began after the silent one was last heard of replaces it, and no other; it may have died since.
    ``turns doctor``, ``turns workers`` and the notice ``worker.gone`` take it from here.

    Args:
        reports: reports: ``at`` and ``started_at`` (seconds since the epoch), ``host``, ``queues``.
        now: seconds since the epoch.
    """
    lost: list[Mapping[str, Any]] = []
    known = sorted(reports, key=lambda each: float(each["at"]))
    heirs = sorted(known, key=lambda each: float(each.get("started_at", 0.0)))
    for each in known:
        if now - each["at"] < HEARD_SECONDS:
            continue
        place = (each["host"], sorted(each["queues"]))
        for heir in heirs:
            if (heir["host"], sorted(heir["queues"])) == place and heir.get("started_at", 0.0) >= each["at"]:
                heirs.remove(heir)
                break
        else:
            lost.append(each)
    return lost
