"""Which deliveries of phases are old enough to go (``turns gc``). They are in people's folders: nothing else is named.

<phases folder>/<id>/attempts/<turn>-<n>-<delivery>/, see ``api_client/contract/phases/phase_place.py``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from api_client.contract.phases.phase_place import PHASES, PRIVATE, phase_session
from worker.files.folder_clearing import GONE, Old, last_written, size_of

_DELIVERY = re.compile(r"t\d{1,4}-[0-9a-f]{32}-\d+-\d+")


def old_phase_attempts(
    root: Path, directories: Iterable[str], *, now: float, attempt_seconds: float, live: Callable[[str], bool]
) -> Iterator[Old]:
    """Deliveries not written to for this long (0: never), and what a killed clearing left. None of a live session.

    ``directories``: folders of phases.yaml, relative to ``root``; owners' private places are found without.
    """
    for phases, session_id in _places(root, directories):
        if not attempt_seconds or not phases.resolve().is_relative_to(root.resolve()):
            continue
        for phase in _folders(phases):
            if phase.name.startswith(GONE):
                yield Old("gone", phase, "", size_of(phase))
            elif not live(session_id):
                for delivery in _folders(phase / "attempts"):
                    if _DELIVERY.fullmatch(delivery.name) and now - last_written(delivery) > attempt_seconds:
                        yield Old("attempt", delivery, session_id, size_of(delivery))


def _places(root: Path, directories: Iterable[str]) -> Iterator[tuple[Path, str]]:
    """The folders of phases, each with the session that works in it."""
    for directory in sorted(directories):
        yield root / directory / PHASES, phase_session(directory)
    for place in _folders(root / PRIVATE):
        yield place, place.name


def _folders(parent: Path) -> list[Path]:
    """The folders in a folder; links are not followed."""
    if parent.is_symlink() or not parent.is_dir():
        return []
    return sorted(path for path in parent.iterdir() if path.is_dir() and not path.is_symlink())
