"""Stores notifications in an outbox, which relays and workers fill and one worker empties (docs/webhooks.md).

A notification leaves the outbox when every target has accepted it. If that takes longer than a day, the notification is
undeliverable: the outbox keeps it, but it is no longer sent. Every method may be repeated.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from api_client.contract.errors import BadRequest
from api_client.contract.notification import REMEMBERED_SECONDS, TRIED_SECONDS, Notification, OutboxEntry
from api_client.contract.order_log import Orders
from api_client.notifications.notification_keys import NotificationKeys
from api_client.store import Store
from api_client.workers.shared_role import SharedRole

_PUT = Path(__file__).with_name("notify.lua")
#: Lifetime of the sender's right without renewal, in seconds: longer than one delivery takes.
_RIGHT_SECONDS = 15.0
#: Most given-up notifications that are kept.
_MOST_DEAD = 10_000
#: Turns read at once, and the time that is searched again if the clock was set back, in milliseconds.
_BATCH, _OVERLAP_MS = 200, 60_000
_FIELDS = ("outcome", "model", "session_id", "error", "attempt", "suspended_at", "finished_at", "state")


@dataclass(frozen=True, slots=True, kw_only=True)
class NotificationCounts:
    """The numbers of notifications that are waiting to be sent and that could not be delivered within a day."""

    waiting: int = 0
    given_up: int = 0


class NotificationOutbox:
    """Stores notifications until they are sent. Methods raise ``StoreUnavailable`` if Redis does not answer."""

    def __init__(self, store: Store, orders: Orders) -> None:
        self._store = store
        self._orders = orders
        self._keys = NotificationKeys(store.namespace)
        self._put = store.redis.register_script(_PUT.read_text(encoding="utf-8"))
        self._sender = SharedRole(store, self._keys.sender, _RIGHT_SECONDS)

    async def put(self, notification: Notification) -> bool:
        """Store a notification, which is then sent at least once. Return False if it was already stored before."""
        args: list[str | int] = [notification.notification_id, notification.to_body(), int(REMEMBERED_SECONDS * 1000)]
        names = [self._keys.said, self._keys.notifications, self._keys.due]
        return bool(await self._store.await_reply(self._put(keys=names, args=args)))

    async def read_new_turns(self, *, suspended: bool) -> AsyncGenerator[tuple[str, dict[str, str]]]:
        """Yield each newly ended turn's id and record. With ``suspended``, yield newly suspended turns instead.

        Every call continues where the previous one stopped, in any process. The first call yields nothing.
        """
        ask, redis, keys = self._store.await_reply, self._store.redis, self._store.keys
        listed = keys.suspended if suspended else keys.finished
        looked, life = self._keys.searched_until(listed), int(self._store.settings.retention_seconds)
        now = await self._store.read_clock_ms()
        since = int(await ask(redis.get(looked)) or 0)
        if not since:
            await ask(redis.set(looked, now, ex=life))
            return
        since = now - _OVERLAP_MS if since > now else since
        while True:
            # Exclude the current millisecond: a turn that arrives within it must not be missed.
            found: Any = await ask(redis.zrangebyscore(listed, since, f"({now}", start=0, num=_BATCH, withscores=True))
            if not found:
                break
            last = int(found[-1][1])
            ids = dict.fromkeys([*(name for name, _ in found), *await ask(redis.zrangebyscore(listed, last, last))])
            for turn in await self._records([name.decode() for name in ids]):
                yield turn
            since = last + 1
            await ask(redis.set(looked, since, ex=life))
        await ask(redis.set(looked, max(since, now - _OVERLAP_MS), ex=life))

    async def _records(self, ids: Sequence[str]) -> list[tuple[str, dict[str, str]]]:
        pipe, keys = self._store.redis.pipeline(transaction=False), self._store.keys
        for turn_id in ids:
            pipe.hmget(keys.turn(turn_id), [*_FIELDS, "request"])
            pipe.hget(keys.texts(turn_id), "request")
        answers = await self._store.await_reply(pipe.execute())
        found = []
        for turn_id, values, request in zip(ids, answers[::2], answers[1::2], strict=True):
            texts = [(value or b"").decode("utf-8", "replace") for value in (*values[:-1], request or values[-1])]
            found.append((turn_id, dict(zip((*_FIELDS, "request"), texts, strict=True))))
        return found

    async def is_sending(self) -> bool:
        return bool(await self._store.await_reply(self._store.redis.exists(self._keys.sender)))

    async def counts(self) -> NotificationCounts:
        """Return how many notifications are waiting to be sent and how many could not be delivered."""
        pipe = self._store.redis.pipeline(transaction=False)
        pipe.zcard(self._keys.due)
        pipe.zcard(self._keys.dead)
        waiting, given_up = await self._store.await_reply(pipe.execute())
        return NotificationCounts(waiting=waiting, given_up=given_up)

    async def waiting(self, most: int = -1) -> list[OutboxEntry]:
        """Return up to ``most`` notifications that are waiting to be sent, the next one first. -1 returns all."""
        return await self._read(self._store.redis.zrange(self._keys.due, 0, _last(most)))

    async def given_up(self, most: int = -1) -> list[OutboxEntry]:
        """Return up to ``most`` notifications that could not be delivered, newest first. -1 returns all."""
        return await self._read(self._store.redis.zrevrange(self._keys.dead, 0, _last(most)))

    async def send_again(self, notification_ids: Sequence[str] = (), *, by: str) -> list[str]:
        """Queue undeliverable notifications again, by default all, and return their ids. ``by`` names the operator.

        The order is recorded. Raises ``BadRequest`` if a notification is not undeliverable.
        """
        entries = await self._chosen(notification_ids)
        now = time.time()
        pipe = self._store.redis.pipeline(transaction=True)
        for entry in entries:
            fresh = replace(entry, put_at=now, tries=0, error="")
            pipe.hset(self._keys.notifications, entry.notification_id, fresh.to_json())
            pipe.zrem(self._keys.dead, entry.notification_id)
            pipe.zadd(self._keys.due, {entry.notification_id: int(now * 1000)})
        async with self._orders.place_order("resend notifications", by=by, detail=" ".join(notification_ids) or "all"):
            await self._store.await_reply(pipe.execute())
        return [entry.notification_id for entry in entries]

    async def drop(self, notification_ids: Sequence[str] = (), *, by: str) -> list[str]:
        """Delete undeliverable notifications, by default all, and return their ids. ``by`` names the operator.

        The order is recorded. Raises ``BadRequest`` if a notification is not undeliverable.
        """
        entries = await self._chosen(notification_ids)
        pipe = self._store.redis.pipeline(transaction=True)
        for entry in entries:
            pipe.zrem(self._keys.dead, entry.notification_id)
            pipe.hdel(self._keys.notifications, entry.notification_id)
        async with self._orders.place_order("drop notifications", by=by, detail=" ".join(notification_ids) or "all"):
            await self._store.await_reply(pipe.execute())
        return [entry.notification_id for entry in entries]

    async def may_send(self) -> bool:
        """Acquire or renew the right to send notifications. Return False if another process has the right."""
        return await self._sender.acquire_role()

    async def leave(self) -> None:
        """Release the right to send notifications, so that another process can send them."""
        await self._sender.release_role()

    async def due(self, count: int) -> list[OutboxEntry]:
        """Return up to ``count`` notifications that must be sent now, those that have been due longest first."""
        now, redis = int(time.time() * 1000), self._store.redis
        ids: Sequence[bytes] = await self._store.await_reply(
            redis.zrangebyscore(self._keys.due, "-inf", now, start=0, num=count)
        )
        entries = await self._entries(ids)
        known = {entry.notification_id for entry in entries}
        if gone := [name for name in ids if name.decode() not in known]:
            await self._store.await_reply(redis.zrem(self._keys.due, *gone))
            await self._store.await_reply(redis.zrem(self._keys.dead, *gone))
        return entries

    async def sent(self, entry: OutboxEntry) -> None:
        """Delete a notification that every target has accepted."""
        pipe = self._store.redis.pipeline(transaction=True)
        pipe.hdel(self._keys.notifications, entry.notification_id)
        pipe.zrem(self._keys.due, entry.notification_id)
        await self._store.await_reply(pipe.execute())

    async def failed(self, entry: OutboxEntry, taken: Sequence[str], error: str) -> bool:
        """Record a failed delivery of a notification. Return True if it was the last attempt to deliver it.

        Otherwise, another attempt is scheduled, without the targets that have accepted it (``taken``).
        """
        entry = replace(entry, tries=entry.tries + 1, taken=(*entry.taken, *taken), error=error[:300])
        now = time.time()
        dead = now - entry.put_at + entry.delay > TRIED_SECONDS
        pipe = self._store.redis.pipeline(transaction=True)
        pipe.hset(self._keys.notifications, entry.notification_id, entry.to_json())
        if dead:
            pipe.zrem(self._keys.due, entry.notification_id)
            pipe.zadd(self._keys.dead, {entry.notification_id: int(now * 1000)})
        else:
            pipe.zadd(self._keys.due, {entry.notification_id: int((now + entry.delay) * 1000)})
        await self._store.await_reply(pipe.execute())
        return dead

    async def forget_old(self) -> None:
        """Delete all undeliverable notifications but the newest 10,000."""
        old = await self._store.await_reply(self._store.redis.zrange(self._keys.dead, 0, -_MOST_DEAD - 1))
        if old:
            pipe = self._store.redis.pipeline(transaction=True)
            pipe.hdel(self._keys.notifications, *old)
            pipe.zrem(self._keys.dead, *old)
            await self._store.await_reply(pipe.execute())

    async def _chosen(self, notification_ids: Sequence[str]) -> list[OutboxEntry]:
        given_up = {entry.notification_id: entry for entry in await self.given_up()}
        if unknown := [each for each in notification_ids if each not in given_up]:
            raise BadRequest(
                f"not given up: {unknown[0][:60]!r} (see `turns notifications dead`)", param="notification"
            )
        return [
            entry for entry in given_up.values() if not notification_ids or entry.notification_id in notification_ids
        ]

    async def _read(self, found: Any) -> list[OutboxEntry]:
        return await self._entries(await self._store.await_reply(found))

    async def _entries(self, ids: Sequence[bytes]) -> list[OutboxEntry]:
        if not ids:
            return []
        texts = await self._store.await_reply(self._store.redis.hmget(self._keys.notifications, list(ids)))
        return [
            OutboxEntry.from_json(name.decode(), text)
            for name, text in zip(ids, texts, strict=True)
            if text is not None
        ]


def _last(most: int) -> int:
    return most - 1 if most >= 0 else -1
