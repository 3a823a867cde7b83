"""Finished turns in the order in which they ended, each reader with a cursor in the store: the time it has come to.

The cursor moves on after the reader took the turns: none is left out, and a reader that is killed in between gets the
same turns once more. Nothing here is in the way of a turn: the list of finished turns is there anyway.
"""

from __future__ import annotations

from dataclasses import dataclass

from api_client.store import Store

#: When the store's clock was set back, turns of so long before are read again, in ms.
_OVERLAP_MS = 60_000
#: Where nothing ends, the time is noted so often.
_IDLE_MS = 30_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Turns that ended before ``until`` (ms of the store's clock), and after the batch before."""

    turn_ids: tuple[str, ...]
    until: int


class FinishedTurns:
    """Finished turns from a cursor on. Each method raises ``StoreUnavailable`` when the store does not answer."""

    def __init__(self, store: Store, reader: str) -> None:
        self._redis, self._ask, self._clock_ms = store.redis, store.ask, store.clock_ms
        self._keys = store.keys
        self._cursor = f"{store.keys.prefix}read:{reader}"
        self._life = int(store.settings.retention_seconds)

    async def begin(self, since_seconds: float | None = None) -> None:
        """Begin with turns that ended so long ago or later; None: where it left off, at first with those from now."""
        now = await self._clock_ms()
        if since_seconds is None:
            await self._ask(self._redis.set(self._cursor, now, nx=True, ex=self._life))
        else:
            await self._note(now - round(since_seconds * 1000))

    async def next(self, size: int) -> Batch | None:
        """About ``size`` turns that come next; None when none waits."""
        now = await self._clock_ms()
        since = int(await self._ask(self._redis.get(self._cursor)) or now)
        if since > now:
            since = now - _OVERLAP_MS
        # Up to now, exclusively: a turn that ends in this very millisecond must not be left out.
        found = await self._ask(
            self._redis.zrangebyscore(self._keys.finished, since, f"({now}", start=0, num=size, withscores=True)
        )
        if not found:
            if now - since > _IDLE_MS:
                await self._note(now)
            return None
        last = int(found[-1][1])
        # All that ended in the same millisecond as the last of them, so that the next batch begins after it.
        same = await self._ask(self._redis.zrangebyscore(self._keys.finished, last, last))
        ids = dict.fromkeys([turn_id.decode() for turn_id, _ in found] + [turn_id.decode() for turn_id in same])
        return Batch(turn_ids=tuple(ids), until=last + 1)

    async def sent(self, batch: Batch) -> None:
        """Note that a batch is done."""
        await self._note(batch.until)

    async def waiting(self, longer_than: float) -> int | None:
        """Count turns that ended longer ago than that (seconds) and were not read; None where nothing ever was."""
        until = await self._clock_ms() - round(longer_than * 1000)
        if not (since := await self._ask(self._redis.get(self._cursor))):
            return None
        return int(await self._ask(self._redis.zcount(self._keys.finished, int(since), f"({until}")))

    async def _note(self, until: int) -> None:
        """It lives as long as turns do: where a reader was given up, nothing waits for it any more."""
        await self._ask(self._redis.set(self._cursor, until, ex=self._life))
