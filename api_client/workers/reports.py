"""What worker processes last reported of themselves, read from the store."""

from __future__ import annotations

from contextlib import suppress

from api_client.contract.keys import Keys
from api_client.contract.values.worker_reports import WorkerReport
from api_client.store import Store


async def reported_workers(store: Store) -> list[WorkerReport]:
    """What each worker process last reported, by name.

    Raises:
        StoreUnavailable: the store does not answer.
    """
    return await _read(store, Keys(store.namespace).workers)


async def ended_workers(store: Store) -> list[WorkerReport]:
    """The last report of each worker process that ended in peace within a day; ``at`` is its end. Raises as above."""
    return await _read(store, Keys(store.namespace).ended_workers)


async def _read(store: Store, key: str) -> list[WorkerReport]:
    found = list[WorkerReport]()
    for name, text in sorted((await store.ask(store.redis.hgetall(key))).items()):
        with suppress(ValueError):
            found.append(WorkerReport.from_json(name.decode(), text))
    return found
