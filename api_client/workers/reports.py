"""Reads workers' reports, exits of their processes, and the length of the broker's queues."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from api_client.broker.celery_message import celery_settings
from api_client.contract.keys import Keys
from api_client.contract.process_exit import KEEP_SECONDS, MOST, ProcessExit
from api_client.contract.settings import Settings
from api_client.contract.tasks import ALL_QUEUES
from api_client.contract.worker_reports import WorkerReport
from api_client.store import Store
from api_client.store.connecting import open_store

if TYPE_CHECKING:
    from redis.asyncio import Redis


#: A supervisor sees an exit, and reaches the store, within this many seconds of the last heartbeat.
_EARLY, _LATE = 5.0, 60.0


async def read_written_reports(redis: Redis, namespace: str) -> list[WorkerReport]:
    """Return the stored reports of all worker processes. Raises ``RedisError`` if the store does not answer."""
    stored: Any = await redis.hgetall(Keys(namespace).workers)
    return parse_reports(stored)


def parse_reports(stored: Mapping[bytes, bytes], alive: Iterable[bytes] = ()) -> list[WorkerReport]:
    """Decode the stored reports of worker processes. Invalid reports are skipped.

    ``alive`` has the names of channels that show signs of life (``Keys.alive``).
    """
    signs = {
        name: float(at) for at, _, name in (each.decode().partition("}:alive:")[2].partition(":") for each in alive)
    }
    found = list[WorkerReport]()
    for name, text in sorted(stored.items()):
        with suppress(ValueError):
            report = WorkerReport.from_json(name.decode(), text)
            found.append(replace(report, at=max(report.at, signs.get(report.name, 0.0))))
    return found


async def store_exit(settings: Settings, ended: ProcessExit) -> None:
    """Store how a worker process ended. Raises ``RedisError``, or ``SettingsError`` without a store."""
    key = Keys(settings.namespace).exits
    async with open_store(settings) as redis:
        both: Any = redis.pipeline()
        both.xadd(key, ended.to_fields(), maxlen=MOST, approximate=True)
        both.expire(key, KEEP_SECONDS)
        await both.execute()


async def read_exits(store: Store) -> list[ProcessExit]:
    """Return the stored exits of worker processes, oldest first. Raises ``StoreUnavailable``."""
    found = []
    for entry, fields in await store.await_reply(store.redis.xrange(Keys(store.namespace).exits, count=2 * MOST)) or []:
        with suppress(KeyError, ValueError):
            found.append(ProcessExit.from_entry(entry, fields))
    return found


def find_exit(exits: Iterable[ProcessExit], worker: str, *, heard: float, missed: float) -> ProcessExit | None:
    """Return the exit of a worker that last reported at ``heard`` and was found missing at ``missed``, or None."""
    likely = (each for each in exits if each.worker == worker and heard - _EARLY <= each.at <= missed + _LATE)
    return next(likely, None)


async def count_messages(store: Store) -> dict[str, int]:
    """Return the number of messages in each queue of the broker. Raises ``RedisError``."""
    settings = store.settings
    if settings.broker_url == settings.store_url:
        return await _read_lengths(store.redis, settings)
    async with open_store(replace(settings, store_url=settings.broker_url)) as broker:
        return await _read_lengths(broker, settings)


async def _read_lengths(broker: Redis, settings: Settings) -> dict[str, int]:
    prefix = celery_settings(settings)["broker_transport_options"]["global_keyprefix"]
    names = sorted(ALL_QUEUES)
    pipe = broker.pipeline(transaction=False)
    for name in names:
        pipe.llen(prefix + name)
    return dict(zip(names, await pipe.execute(), strict=True))
