"""What worker processes last reported of themselves, read from the store."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from api_client.contract.keys import Keys
from api_client.contract.values.worker_reports import WorkerReport
from api_client.store import Store


async def reported_workers(store: Store) -> list[WorkerReport]:
    """What each worker process last reported, by name.

    Raises:
        StoreUnavailable: the store does not answer.
    """
    return reports_of(await store.ask(store.redis.hgetall(Keys(store.namespace).workers)))


def reports_of(stored: Mapping[bytes, bytes]) -> list[WorkerReport]:
    """The reports of a stored hash, by name; others are left out. Pure."""
    found = list[WorkerReport]()
    for name, text in sorted(stored.items()):
        with suppress(ValueError):
            found.append(WorkerReport.from_json(name.decode(), text))
    return found
