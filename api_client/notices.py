"""Calls for help as this side sees them: what is put into the outbox, what is waiting there, what was given up.

A worker sends them (docs/webhooks.md).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from api_client.audit import Audit
from api_client.contract.errors import BadRequest
from api_client.contract.keys import Keys
from api_client.contract.values.notices import LUA, Entry, Notice
from api_client.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class NoticeCounts:
    """How many notices are in the outbox: ``waiting`` to be sent, and ``given_up`` after a day."""

    waiting: int = 0
    given_up: int = 0


class Notices:
    """The outbox of notices. Each method raises ``StoreUnavailable`` when the store does not answer."""

    def __init__(self, store: Store, audit: Audit) -> None:
        self._store = store
        self._audit = audit
        self._keys = Keys(store.namespace)
        self._put = store.redis.register_script(LUA.read_text())

    async def put(self, notice: Notice) -> bool:
        """Put a notice into the outbox; False when it was put before. It is sent at least once."""
        names = [self._keys.notices_said, self._keys.notices, self._keys.notices_due]
        return bool(await self._store.ask(self._put(keys=names, args=list(notice.put_arguments()))))

    async def are_sent(self) -> bool:
        """Whether a worker with a target is there: what is put while none is would stay there for ever."""
        return bool(await self._store.ask(self._store.redis.exists(self._keys.notices_sender)))

    async def counts(self) -> NoticeCounts:
        """How many wait, and how many were given up."""
        pipe = self._store.redis.pipeline(transaction=False)
        pipe.zcard(self._keys.notices_due)
        pipe.zcard(self._keys.notices_dead)
        waiting, given_up = await self._store.ask(pipe.execute())
        return NoticeCounts(waiting=waiting, given_up=given_up)

    async def waiting(self, most: int = -1) -> list[Entry]:
        """What is to be sent, the next one first; ``most`` at most, -1: all."""
        return await self._read(self._store.redis.zrange(self._keys.notices_due, 0, _last(most)))

    async def given_up(self, most: int = -1) -> list[Entry]:
        """What was given up, the newest first; ``most`` at most, -1: all."""
        return await self._read(self._store.redis.zrevrange(self._keys.notices_dead, 0, _last(most)))

    async def send_again(self, notice_ids: Sequence[str] = (), *, by: str) -> list[str]:
        """Try notices that were given up for another day, with the same ids; all where none is named. Returns the ids.

        Raises:
            BadRequest: one was not given up.
        """
        entries = await self._chosen(notice_ids)
        await self._audit.note("resend notices", by=by, detail=" ".join(notice_ids) or "all")
        now = time.time()
        pipe = self._store.redis.pipeline(transaction=True)
        for entry in entries:
            fresh = replace(entry, put_at=now, tries=0, error="")
            pipe.hset(self._keys.notices, entry.notice_id, fresh.stored())
            pipe.zrem(self._keys.notices_dead, entry.notice_id)
            pipe.zadd(self._keys.notices_due, {entry.notice_id: int(now * 1000)})
        await self._store.ask(pipe.execute())
        return [entry.notice_id for entry in entries]

    async def drop(self, notice_ids: Sequence[str] = (), *, by: str) -> list[str]:
        """Take notices that were given up off the list; all where none is named. As ``send_again``."""
        entries = await self._chosen(notice_ids)
        await self._audit.note("drop notices", by=by, detail=" ".join(notice_ids) or "all")
        pipe = self._store.redis.pipeline(transaction=True)
        for entry in entries:
            pipe.zrem(self._keys.notices_dead, entry.notice_id)
            pipe.hdel(self._keys.notices, entry.notice_id)
        await self._store.ask(pipe.execute())
        return [entry.notice_id for entry in entries]

    async def _chosen(self, notice_ids: Sequence[str]) -> list[Entry]:
        given_up = {entry.notice_id: entry for entry in await self.given_up()}
        if unknown := [each for each in notice_ids if each not in given_up]:
            raise BadRequest(f"not given up: {unknown[0][:60]!r} (see `turns notices dead`)", param="notice")
        return [entry for entry in given_up.values() if not notice_ids or entry.notice_id in notice_ids]

    async def _read(self, found: Any) -> list[Entry]:
        ids: Sequence[bytes] = await self._store.ask(found)
        if not ids:
            return []
        texts = await self._store.ask(self._store.redis.hmget(self._keys.notices, list(ids)))
        # An id without an entry is what a kill left of one that was sent: its sender takes it out.
        return [Entry.read(name.decode(), text) for name, text in zip(ids, texts, strict=True) if text is not None]


def _last(most: int) -> int:
    return most - 1 if most >= 0 else -1
