"""Find old deliveries of phases for ``turns gc``, in ``<phases folder>/<id>/attempts/`` of users' projects."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from api_client.contract.phase_place import PHASES, PRIVATE, phase_session
from worker.files.folder_clearing import GONE, Old, folders_in, last_written, size_of

_DELIVERY = re.compile(r"turn-[0-9a-f]{32}-\d+-\d+")


def old_phase_attempts(
    root: Path, directories: Iterable[str], *, now: float, attempt_seconds: float, live: Callable[[str], bool]
) -> Iterator[Old]:
    """Find deliveries of phases that were not written to for this long, except in live sessions; 0 means never.

    Also finds the rest of an interrupted deletion.

    Args:
        directories: folders of phases.yaml, relative to ``root``; private folders of owners are found without them.
    """
    for phases, session_id in _places(root, directories):
        if not attempt_seconds or not phases.resolve().is_relative_to(root.resolve()):
            continue
        for phase in folders_in(phases):
            if phase.name.startswith(GONE):
                yield Old("gone", phase, "", size_of(phase))
            elif not live(session_id):
                for delivery in folders_in(phase / "attempts"):
                    if _DELIVERY.fullmatch(delivery.name) and now - last_written(delivery) > attempt_seconds:
                        yield Old("attempt", delivery, session_id, size_of(delivery))


def _places(root: Path, directories: Iterable[str]) -> Iterator[tuple[Path, str]]:
    for directory in sorted(directories):
        yield root / directory / PHASES, phase_session(directory)
    for place in folders_in(root / PRIVATE):
        yield place, place.name
