"""An installation with a past, for measurements and pictures: turns are played once and copied into the past.

Every record, log and counter was written by the real commands; only ids, sessions and times of the copies differ.
"""

import random
import time
from collections import Counter
from dataclasses import dataclass

import redis

from api_client.contract.keys import BUCKETS, Keys
from api_client.contract.settings import Settings
from tests import records

_TIMES = ("created_at", "finished_at", "deadline_at")


@dataclass(frozen=True)
class Played:
    """A turn that was played to its end, and what it added to the counters."""

    turn_id: str
    counted: Counter[str]


class Past:
    """Writes any number of copies of turns, adding their counters to the right buckets."""

    def __init__(self, settings: Settings) -> None:
        self._store = redis.Redis.from_url(settings.redis_url)
        self._keys = Keys(settings.namespace)
        self._buckets: dict[str, Counter[str]] = {}
        self._number = 0

    def counters(self) -> Counter[str]:
        """Return the counters since the beginning; their difference over a turn is what the turn counted."""
        return records.counters(self._store, self._keys)

    def finished(self, played: Played, at: float, *, waited: float = 0.0) -> str:
        """Add a copy of a turn that finished at ``at`` (epoch seconds) and waited ``waited`` seconds longer."""
        turn_id = self._copy(played.turn_id, shift_ms=int(at * 1000) - self._field(played.turn_id, "finished_at"))
        self._store.hincrby(self._keys.turn(turn_id), "created_at", -int(waited * 1000))
        self._store.zadd(self._keys.finished, {turn_id: int(at * 1000)})
        self._buckets.setdefault(self._keys.totals, Counter()).update(played.counted)
        for size in BUCKETS:
            self._buckets.setdefault(self._keys.bucket_key(size, at), Counter()).update(played.counted)
        return turn_id

    def unfinished(self, turn_id: str, since: float) -> str:
        """Add a copy of an unfinished turn that began at ``since``, to be looked at only in an hour."""
        copy = self._copy(turn_id, shift_ms=int(since * 1000) - self._field(turn_id, "created_at"))
        self._store.zadd(self._keys.due, {copy: int((time.time() + 3600) * 1000)})
        return copy

    def write_counters(self) -> None:
        """Add the counters of the copies to the totals and the buckets."""
        pipe = self._store.pipeline(transaction=False)
        for bucket, counters in self._buckets.items():
            for name, value in counters.items():
                pipe.hincrby(bucket, name, value)
        pipe.execute()
        self._buckets.clear()

    def _field(self, turn_id: str, name: str) -> int:
        return int(self._store.hget(self._keys.turn(turn_id), name) or 0)

    def _copy(self, turn_id: str, *, shift_ms: int) -> str:
        self._number += 1
        copy = f"turn-{random.Random(self._number).getrandbits(128):032x}"
        pipe = self._store.pipeline(transaction=False)
        for name in ("turn", "log", "attempts", "texts"):
            pipe.copy(getattr(self._keys, name)(turn_id), getattr(self._keys, name)(copy))
        times = dict(zip(_TIMES, self._store.hmget(self._keys.turn(turn_id), _TIMES), strict=True))
        moved = {name: int(value) + shift_ms for name, value in times.items() if value and int(value)}
        pipe.hset(self._keys.turn(copy), mapping={"id": copy, "session_id": f"chat-{self._number}", **moved})
        pipe.execute()
        return copy
