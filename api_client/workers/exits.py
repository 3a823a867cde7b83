"""How workers' processes ended: what their supervisors noted, and which of these ends a lost delivery belongs to."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from api_client.contract.keys import Keys
from api_client.contract.values.process_exit import MOST, ProcessExit
from api_client.store import Store

#: A supervisor notices an end, and reaches the store, within so many seconds of the last beat.
_EARLY, _LATE = 5.0, 60.0


async def read_exits(store: Store) -> list[ProcessExit]:
    """The ends that are remembered, oldest first. Raises as ``Store.ask``."""
    found = []
    for entry, fields in await store.ask(store.redis.xrange(Keys(store.namespace).exits, count=2 * MOST)) or []:
        with suppress(KeyError, ValueError):
            found.append(ProcessExit.from_entry(entry, fields))
    return found


def exit_of(exits: Iterable[ProcessExit], worker: str, *, heard: float, noticed: float) -> ProcessExit | None:
    """The end of a worker that was last heard of at ``heard`` and missed at ``noticed``; None if nobody saw it.

    A worker's name outlives its process, which is restarted: so the time decides. Pure. Seconds since the epoch.
    """
    likely = (each for each in exits if each.worker == worker and heard - _EARLY <= each.at <= noticed + _LATE)
    return next(likely, None)
