"""The reason why a backup cannot be taken or restored."""

from __future__ import annotations

from api_client.contract.errors import HelixError


class BackupFailed(HelixError):
    """The backup cannot be taken; nothing was written in the place of an archive."""

    code = "backup_failed"
