"""The mark of a restore that is not done. What starts looks for it, so nothing is imported here that costs."""

from __future__ import annotations

from pathlib import Path

from api_client.contract.errors import RestoreRefused
from api_client.contract.settings import STATE_DIR

#: The file in the state folder of HELIX_ROOT.
MARK = "restoring"


def require_whole(root: Path) -> None:
    """Refuse to start on an installation that is half restored. Raises ``RestoreRefused``: it is; says what to do."""
    if (root / STATE_DIR / MARK).exists():
        raise RestoreRefused(f"{root} is half restored: run the same `turns restore` again, then start")
