"""The outbox of notices in the store: what is to be sent, what was given up. Durable; any process may die at any line.

An entry leaves the outbox when every target took it. After a day it is given up, into a list that people see.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import redis

from api_client.contract.keys import Keys
from api_client.contract.values.notices import LUA, TRIED_SECONDS, Notice

#: Between two tries: it begins with the first and doubles up to the second, in seconds.
_FIRST_DELAY_SECONDS, _LONGEST_DELAY_SECONDS = 5.0, 3600.0
#: The sender's right lives so long without being renewed, in ms: longer than one delivery takes.
_RIGHT_MS = 15_000
#: Of those given up so many are kept.
_MOST_DEAD = 10_000
_RENEW = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('PEXPIRE', KEYS[1], ARGV[2]) end return 0"
_RELEASE = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A notice in the outbox.

    Attributes:
        notice_id: its id. body: what is sent.
        put_at: when it was put, in seconds since the epoch.
        tries: how often it was tried. taken: the targets that took it. error: why the last try failed.
    """

    notice_id: str
    body: str
    put_at: float
    tries: int = 0
    taken: tuple[str, ...] = field(default=())
    error: str = ""

    @property
    def kind(self) -> str:
        """What it is about."""
        return str(json.loads(self.body)["type"])

    @property
    def delay(self) -> float:
        """How long after this try the next one comes, in seconds."""
        return min(_LONGEST_DELAY_SECONDS, _FIRST_DELAY_SECONDS * 2.0 ** max(0, self.tries - 1))

    def stored(self) -> str:
        """The entry as it is stored."""
        told = {"body": self.body, "put_at": round(self.put_at * 1000), "tries": self.tries, "error": self.error}
        return json.dumps({**told, "taken": list(self.taken)})

    @classmethod
    def read(cls, notice_id: str, text: bytes) -> Entry:
        """Read a stored entry."""
        told: dict[str, Any] = json.loads(text)
        return cls(
            notice_id=notice_id,
            body=told["body"],
            put_at=told["put_at"] / 1000,
            tries=told.get("tries", 0),
            taken=tuple(told.get("taken") or ()),
            error=told.get("error", ""),
        )


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

    def waiting(self) -> list[Entry]:
        """Entries that are to be sent, the next one first."""
        return self._read(self._store.zrange(self._keys.notices_due, 0, -1))  # type: ignore[arg-type]

    def dead(self) -> list[Entry]:
        """Entries that were given up, the newest first."""
        return self._read(self._store.zrevrange(self._keys.notices_dead, 0, -1))  # type: ignore[arg-type]

    def forget_old(self) -> None:
        """Keep only the newest of those given up."""
        old: Any = self._store.zrange(self._keys.notices_dead, 0, -_MOST_DEAD - 1)
        if old:
            self.drop([name.decode() for name in old])

    def send_again(self, entries: Sequence[Entry]) -> None:
        """Try entries that were given up for another day."""
        now = time.time()
        pipe = self._store.pipeline(transaction=True)
        for entry in entries:
            fresh = replace(entry, put_at=now, tries=0, error="")
            pipe.hset(self._keys.notices, entry.notice_id, fresh.stored())
            pipe.zrem(self._keys.notices_dead, entry.notice_id)
            pipe.zadd(self._keys.notices_due, {entry.notice_id: int(now * 1000)})
        pipe.execute()

    def drop(self, notice_ids: Sequence[str]) -> None:
        """Take entries out of the outbox and off the list."""
        pipe = self._store.pipeline(transaction=True)
        for notice_id in notice_ids:
            pipe.hdel(self._keys.notices, notice_id)
            pipe.zrem(self._keys.notices_due, notice_id)
            pipe.zrem(self._keys.notices_dead, notice_id)
        pipe.execute()
