"""Which deliveries of phases are old enough to go (``turns gc``). They lie in people's folders: nothing else is named.

DIRECTORY/phases/<id>/attempts/<turn>-<n>-<delivery>/
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from worker.consultant.clearing import GONE, Old, last_written, size_of
from worker.turns.phase_folders import PHASES

_DELIVERY = re.compile(r"t\d{1,4}-[0-9a-f]{32}-\d+-\d+")


def old_phase_attempts(
    root: Path, sessions: Mapping[str, str], *, now: float, attempt_seconds: float, live: Callable[[str], bool]
) -> Iterator[Old]:
    """Deliveries not written to for so long (0: never), and what a killed clearing left. None of a live session.

    ``sessions``: folder of a phases.yaml, relative to ``root``, to the session its phases run in.
    """
    for directory, session_id in sorted(sessions.items()):
        phases = root / directory / PHASES
        if not attempt_seconds or not phases.resolve().is_relative_to(root.resolve()):
            continue
        for phase in _folders(phases):
            if phase.name.startswith(GONE):
                yield Old("gone", phase, "", size_of(phase))
            elif not live(session_id):
                for delivery in _folders(phase / "attempts"):
                    if _DELIVERY.fullmatch(delivery.name) and now - last_written(delivery) > attempt_seconds:
                        yield Old("attempt", delivery, session_id, size_of(delivery))


def _folders(parent: Path) -> list[Path]:
    """The folders in a folder; links are not followed."""
    if parent.is_symlink() or not parent.is_dir():
        return []
    return sorted(path for path in parent.iterdir() if path.is_dir() and not path.is_symlink())
