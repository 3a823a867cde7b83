"""The number of shards an installation's turns are spread over is stored with them. Another number is refused.

A turn's id names its shard, but which session is in which shard follows from the number: with a lower one nobody would
look at the turns of the others, and with a higher one a session could have two turns at work.
"""

from __future__ import annotations

from collections.abc import Sequence

from api_client.contract.errors import SettingsError
from api_client.contract.keys import Keys

#: The field of ``Keys.installation`` that has the number, and the most that HELIX_SHARDS can be.
FIELD, MOST = "shards", 1024
#: The field that says which backup the store is being restored from (``worker.backup``): nothing starts meanwhile.
RESTORING = "restoring"


def traces(namespace: str) -> list[tuple[str, str]]:
    """Two keys per shard: one of them is there as soon as a turn was ever submitted to it."""
    return [(keys.totals, keys.pending) for keys in (Keys(namespace, shard) for shard in range(MOST))]


def number_used(exists: Sequence[int], asked: int) -> int:
    """The number of a store that does not name it yet: as many as its keys show (``traces``), at least ``asked``."""
    return max([asked, *(shard + 1 for shard, there in enumerate(exists) if there)])


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
