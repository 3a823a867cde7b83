"""Refuses to start while a backup is being restored into the store."""

from __future__ import annotations

from redis.exceptions import RedisError

from api_client.contract.errors import SettingsError
from api_client.contract.keys import Keys
from api_client.contract.settings import Settings
from api_client.store.connecting import open_blocking_store
from api_client.store.module_log import ModuleLog

log = ModuleLog(__name__)

#: The field of ``Keys.installation`` with the digest of the backup being restored (``turns data restore``).
RESTORING = "restoring"


def refuse_unfinished_restore(settings: Settings) -> None:
    """Raise ``SettingsError`` if a restore into the store has begun but not finished."""
    try:
        with open_blocking_store(settings, answer_seconds=2.0, resends=0) as store:
            half = store.hexists(Keys(settings.namespace).installation, RESTORING)
    except RedisError as error:
        log.warning("store.not_looked_at", error=type(error).__name__)
        return
    if half:
        raise SettingsError(["the store is half restored: run the same `turns data restore` again, then start"])
