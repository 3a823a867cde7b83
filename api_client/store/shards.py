"""The number of shards an installation's turns are spread over is stored with them. Another number is refused.

A turn's id names its shard, but which session is in which shard follows from the number: with a lower one nobody
would look at the turns of the others, and with a higher one a session could have two turns at work.
"""

from __future__ import annotations

import asyncio
from typing import Any

from redis.exceptions import RedisError

from api_client.contract.errors import SettingsError
from api_client.contract.keys import Keys
from api_client.contract.settings import Settings
from api_client.store.connecting import open_store
from api_client.store.module_log import ModuleLog

log = ModuleLog(__name__)

#: The field of ``Keys.installation`` that has the number.
FIELD = "shards"
#: The field that says which backup the store is being restored from (``turns restore``): nothing starts meanwhile.
RESTORING = "restoring"


def require_same(stored: int, asked: int, namespace: str) -> None:
    """Refuse another number than the store's.

    Raises:
        SettingsError: says what to do.
    """
    if stored != asked:
        number = f"{stored} shard{'' if stored == 1 else 's'}"
        said = f"HELIX_SHARDS={asked}: the turns of this store are spread over {number}"
        other = f"HELIX_NAMESPACE={namespace}-{asked}"
        ways = f"set HELIX_SHARDS={stored} everywhere, or take a namespace without turns: {other}"
        raise SettingsError([f"{said}; {ways}"])


async def number_of(redis: Any, settings: Settings) -> int:
    """The number of the store, which the first process writes there. Raises ``RedisError``."""
    key = Keys(settings.namespace).installation
    if (stored := await redis.hget(key, FIELD)) is None:
        await redis.hsetnx(key, FIELD, settings.shards)
        stored = await redis.hget(key, FIELD)
    return int(stored)


async def stored_shards(settings: Settings) -> int:
    """The number of the store, as ``number_of``; 0 when the store does not answer.

    Raises:
        SettingsError: a restore of the store did not end.
    """
    try:
        async with open_store(settings) as store:
            if await store.hexists(Keys(settings.namespace).installation, RESTORING):
                raise SettingsError(["the store is half restored: run the same `turns restore` again, then start"])
            return await number_of(store, settings)
    except (RedisError, ValueError) as error:
        log.warning("store.shards_unknown", error=type(error).__name__)
        return 0


def require_shards(settings: Settings) -> None:
    """Refuse to work with another number of shards than the store's; one that does not answer is not waited for.

    Not to be called in an event loop.

    Raises:
        SettingsError: HELIX_SHARDS is another number, or the store is half restored; says what to do.
    """
    if number := asyncio.run(stored_shards(settings)):
        require_same(number, settings.shards, settings.namespace)
