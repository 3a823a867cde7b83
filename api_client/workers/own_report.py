"""A worker process's own entries in the store: its report, its sign of life, and its orders from operators."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from api_client.contract.keys import Keys
from api_client.contract.settings import Settings
from api_client.contract.worker_reports import WorkerReport, recent_reports, worker_name
from api_client.store.connecting import open_store

#: Reports of gone workers are kept for this long, in seconds, and at most this many.
_FORGET_SECONDS, _REMEMBERED = 86_400.0, 1000


class OwnReport:
    """Reads and writes the entries of one worker process in the store. Methods raise ``RedisError``."""

    def __init__(self, settings: Settings, name: str, redis: Any) -> None:
        self._name, self._keys = name, Keys(settings.namespace)
        self._redis = redis
        self._sign: Any = open_store(settings).pubsub()  # listens over its own connection
        self._kept_at = float("-inf")

    async def read_clock(self) -> float:
        """Return the store's time in seconds since the epoch."""
        seconds, micros = await self._redis.time()
        return int(seconds) + int(micros) / 1e6

    async def read_order(self) -> str:
        """Return the operator's order to this process, or an empty string if there is none."""
        found: bytes | None = await self._redis.hget(self._keys.orders, self._name)
        return (found or b"").decode()

    async def write_report(self, report: WorkerReport) -> None:
        """Write this process's report. Once an hour, also delete the reports of long-gone workers.

        Raises ``ResponseError`` if the store refuses the write.
        """
        await self._redis.hset(self._keys.workers, self._name, report.to_json())
        if time.monotonic() - self._kept_at > _FORGET_SECONDS / 24:
            for key in (self._keys.workers, self._keys.ended_workers):
                listed: Mapping[bytes, bytes] = await self._redis.hgetall(key)
                since = {name: _reported_at(text) for name, text in listed.items()}
                newest = sorted(since, key=since.__getitem__, reverse=True)
                if gone := [n for n in newest if report.at - since[n] > _FORGET_SECONDS] or newest[_REMEMBERED:]:
                    await self._redis.hdel(key, *gone)
            await self._redis.expire(self._keys.workers, int(_FORGET_SECONDS))
            self._kept_at = time.monotonic()
        await self._sign.aclose()

    async def signal_alive(self, at: float) -> None:
        """Subscribe to a channel with this worker's name, to show that it is alive even if the store is read-only."""
        await self._sign.aclose()
        await self._sign.subscribe(self._keys.alive(f"{at}:{self._name}"))

    async def read_others(self) -> list[WorkerReport]:
        """Return the recent reports of all other workers. Raises ``ValueError`` for an invalid report."""
        found: Mapping[bytes, bytes] = await self._redis.hgetall(self._keys.workers)
        reports = recent_reports(WorkerReport.from_json(name.decode(), text) for name, text in found.items())
        return [each for each in reports if each.worker != worker_name(self._name)]

    async def sign_off(self, last_report: WorkerReport) -> None:
        """Store this worker's last report in the list of ended workers, where it stays for a day."""
        await self._sign.aclose()
        pipe = self._redis.pipeline(transaction=False)
        pipe.hset(self._keys.ended_workers, self._name, last_report.to_json())
        pipe.expire(self._keys.ended_workers, int(_FORGET_SECONDS))
        pipe.hdel(self._keys.workers, self._name)
        pipe.hdel(self._keys.orders, self._name)
        await pipe.execute()


def _reported_at(report: bytes) -> float:
    with suppress(ValueError):
        return WorkerReport.from_json("", report).at
    return 0.0
