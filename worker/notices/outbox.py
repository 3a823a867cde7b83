"""The outbox of notices in the store: what is to be sent, what was given up. Durable; any process may die at any line.

An entry leaves the outbox when every target took it. After a day it is given up, into a list that people see.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import redis

from api_client.contract.keys import Keys
from api_client.contract.values.notices import LUA, TRIED_SECONDS, Entry, Notice

#: The sender's right lives so long without being renewed, in ms: longer than one delivery takes.
_RIGHT_MS = 15_000
#: Of those given up so many are kept.
_MOST_DEAD = 10_000
_RENEW = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('PEXPIRE', KEYS[1], ARGV[2]) end return 0"
_RELEASE = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0"


class Outbox:
    """The outbox. Each method raises ``RedisError`` when the store does not answer; repeating it does no harm."""

    def __init__(self, namespace: str, store: redis.Redis) -> None:
        self._keys = Keys(namespace)
        self._store = store
        self._put = store.register_script(LUA.read_text())
        self._renew = store.register_script(_RENEW)
        self._release = store.register_script(_RELEASE)
        self._right = secrets.token_hex(8)

    def put(self, notice: Notice) -> bool:
        """Put a notice into the outbox; False when it was put before."""
        keys = self._keys
        names = [keys.notices_said, keys.notices, keys.notices_due]
        return bool(self._put(keys=names, args=notice.put_arguments()))

    def may_send(self) -> bool:
        """Whether this process is the one that sends now; asked before each round."""
        key = self._keys.notices_sender
        return bool(
            self._store.set(key, self._right, nx=True, px=_RIGHT_MS)
            or self._renew(keys=[key], args=[self._right, _RIGHT_MS])
        )

    def leave(self) -> None:
        """Let another process send."""
        self._release(keys=[self._keys.notices_sender], args=[self._right])

    def due(self, count: int) -> list[Entry]:
        """Entries whose time has come, the oldest first."""
        now = int(time.time() * 1000)
        found: Any = self._store.zrangebyscore(self._keys.notices_due, "-inf", now, start=0, num=count)
        return self._read(found)

    def _read(self, ids: Sequence[bytes]) -> list[Entry]:
        if not ids:
            return []
        texts: Any = self._store.hmget(self._keys.notices, list(ids))
        # An id without an entry is what a kill left of one that was sent.
        if gone := [name for name, text in zip(ids, texts, strict=True) if text is None]:
            self._store.zrem(self._keys.notices_due, *gone)
            self._store.zrem(self._keys.notices_dead, *gone)
        return [Entry.read(name.decode(), text) for name, text in zip(ids, texts, strict=True) if text is not None]

    def sent(self, entry: Entry) -> None:
        """Every target took it."""
        pipe = self._store.pipeline(transaction=True)
        pipe.hdel(self._keys.notices, entry.notice_id)
        pipe.zrem(self._keys.notices_due, entry.notice_id)
        pipe.execute()

    def failed(self, entry: Entry, taken: Sequence[str], error: str) -> bool:
        """Some target did not take it: try again later, or give it up; True when it was given up."""
        entry = replace(entry, tries=entry.tries + 1, taken=(*entry.taken, *taken), error=error[:300])
        now = time.time()
        dead = now - entry.put_at + entry.delay > TRIED_SECONDS
        pipe = self._store.pipeline(transaction=True)
        pipe.hset(self._keys.notices, entry.notice_id, entry.stored())
        if dead:
            pipe.zrem(self._keys.notices_due, entry.notice_id)
            pipe.zadd(self._keys.notices_dead, {entry.notice_id: int(now * 1000)})
        else:
            pipe.zadd(self._keys.notices_due, {entry.notice_id: int((now + entry.delay) * 1000)})
        pipe.execute()
        return dead

    def forget_old(self) -> None:
        """Keep only the newest of those given up."""
        old: Any = self._store.zrange(self._keys.notices_dead, 0, -_MOST_DEAD - 1)
        if old:
            pipe = self._store.pipeline(transaction=True)
            pipe.hdel(self._keys.notices, *old)
            pipe.zrem(self._keys.notices_dead, *old)
            pipe.execute()
