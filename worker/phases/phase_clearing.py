"""Finds old deliveries of phases for ``turns data gc``, in ``<phases folder>/<id>/attempts/`` of users' projects."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from api_client.contract.phase_folders import PHASES, PRIVATE, phase_session
from worker.files.folder_clearing import GONE, OldFolder, find_last_change, list_folders, measure_size

_DELIVERY = re.compile(r"turn-[0-9a-f]{32}-\d+-\d+")


def find_old_phase_attempts(
    root: Path, directories: Iterable[str], *, now: float, attempt_seconds: float, live: Callable[[str], bool]
) -> Iterator[OldFolder]:
    """Yield the folders of phase attempts that have not changed for ``attempt_seconds``. If it is 0, yield nothing.

    ``directories`` are folders of phases.yaml, relative to ``root``; private folders of owners are found without them.
    """
    for phases, session_id in _phase_folders(root, directories):
        if not attempt_seconds or not phases.resolve().is_relative_to(root.resolve()):
            continue
        for phase in list_folders(phases):
            if phase.name.startswith(GONE):
                yield OldFolder("gone", phase, "", measure_size(phase))
            elif not live(session_id):
                for delivery in list_folders(phase / "attempts"):
                    if _DELIVERY.fullmatch(delivery.name) and now - find_last_change(delivery) > attempt_seconds:
                        yield OldFolder("attempt", delivery, session_id, measure_size(delivery))


def _phase_folders(root: Path, directories: Iterable[str]) -> Iterator[tuple[Path, str]]:
    for directory in sorted(directories):
        yield root / directory / PHASES, phase_session(directory)
    for place in list_folders(root / PRIVATE):
        yield place, place.name
