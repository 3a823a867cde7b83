"""What worker processes last reported of themselves, read from the store."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace

from api_client.contract.keys import Keys
from api_client.contract.values.worker_reports import WorkerReport
from api_client.store import Store


async def reported_workers(store: Store) -> list[WorkerReport]:
    """What each worker process last reported, by name.

    A store that takes no writes takes no reports: then workers listen to channels whose names say when they lived.

    Raises:
        StoreUnavailable: the store does not answer.
    """
    keys = Keys(store.namespace)
    stored = await store.ask(store.redis.hgetall(keys.workers))
    return reports_of(stored, await store.ask(store.redis.pubsub_channels(keys.alive("*"))))


def reports_of(stored: Mapping[bytes, bytes], alive: Iterable[bytes] = ()) -> list[WorkerReport]:
    """The reports of a stored hash, by name; others are left out. Pure. ``alive``: channels of ``Keys.alive``."""
    signs = {
        name: float(at) for at, _, name in (each.decode().partition("}:alive:")[2].partition(":") for each in alive)
    }
    found = list[WorkerReport]()
    for name, text in sorted(stored.items()):
        with suppress(ValueError):
            report = WorkerReport.from_json(name.decode(), text)
            found.append(replace(report, at=max(report.at, signs.get(report.name, 0.0))))
    return found
