"""The file that marks an unfinished restore. Imported at every start, so it imports nothing expensive."""

from __future__ import annotations

from pathlib import Path

from api_client.contract.errors import RestoreRefused
from api_client.contract.settings import STATE_DIR

#: A file in the state folder of HELIX_ROOT.
MARK = "restoring"


def require_complete_restore(root: Path) -> None:
    """Raise ``RestoreRefused`` if a restore into this installation was begun but not finished."""
    if (root / STATE_DIR / MARK).exists():
        raise RestoreRefused(f"{root} is half restored: run the same `turns data restore` again, then start")
