"""Reads finished turns in the order in which they ended, with a stored cursor for each reader.

The cursor advances after a batch was processed, so a killed reader gets the last batch again.
"""

from __future__ import annotations

from dataclasses import dataclass

from api_client.store import Store

#: Time re-read after the store's clock was set back, in milliseconds.
_OVERLAP_MS = 60_000
#: Interval at which an idle cursor is advanced, in milliseconds.
_IDLE_MS = 30_000


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedBatch:
    """A batch of finished turns that ended before ``until`` (milliseconds of the store's clock)."""

    turn_ids: tuple[str, ...]
    until: int


class FinishedTurns:
    """Reads finished turns in batches, remembering its position in the store. Methods raise ``StoreUnavailable``."""

    def __init__(self, store: Store, reader: str) -> None:
        self._redis, self._ask, self._clock_ms = store.redis, store.await_reply, store.read_clock_ms
        self._keys = store.keys
        self._cursor = f"{store.keys.prefix}read:{reader}"
        self._life = int(store.settings.retention_seconds)

    async def start_reading(self, since_seconds: float | None = None) -> None:
        """Start with turns that finished ``since_seconds`` ago or, for None, at the stored position."""
        now = await self._clock_ms()
        if since_seconds is None:
            await self._ask(self._redis.set(self._cursor, now, nx=True, ex=self._life))
        else:
            await self._store_cursor(now - round(since_seconds * 1000))

    async def next_batch(self, size: int) -> FinishedBatch | None:
        """Return the next batch of about ``size`` finished turns, or None if there are none."""
        now = await self._clock_ms()
        since = int(await self._ask(self._redis.get(self._cursor)) or now)
        if since > now:
            since = now - _OVERLAP_MS
        found = await self._ask(
            self._redis.zrangebyscore(self._keys.finished, since, f"({now}", start=0, num=size, withscores=True)
        )
        if not found:
            if now - since > _IDLE_MS:
                await self._store_cursor(now)
            return None
        last = int(found[-1][1])
        # Add all turns of the last millisecond, so that the next batch starts after it.
        same = await self._ask(self._redis.zrangebyscore(self._keys.finished, last, last))
        ids = dict.fromkeys([turn_id.decode() for turn_id, _ in found] + [turn_id.decode() for turn_id in same])
        return FinishedBatch(turn_ids=tuple(ids), until=last + 1)

    async def confirm_batch(self, batch: FinishedBatch) -> None:
        """Mark a batch as processed, so that the next read continues after the batch."""
        await self._store_cursor(batch.until)

    async def count_waiting(self, longer_than: float) -> int | None:
        """Count turns that ended over ``longer_than`` seconds ago and that this reader has not read.

        Return None if the reader has never started.
        """
        until = await self._clock_ms() - round(longer_than * 1000)
        if not (since := await self._ask(self._redis.get(self._cursor))):
            return None
        return int(await self._ask(self._redis.zcount(self._keys.finished, int(since), f"({until}")))

    async def _store_cursor(self, until: int) -> None:
        """Store the reading position, which expires like a turn so that an abandoned reader leaves no data."""
        await self._ask(self._redis.set(self._cursor, until, ex=self._life))
