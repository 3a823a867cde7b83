"""Reads what the commands store: records with their texts, logs event by event, and all counters."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

import redis

from api_client.contract.counters import read_pending
from api_client.contract.keys import Keys


def counters(store: redis.Redis, keys: Keys) -> Counter[str]:
    """Return the counters since the beginning, including pending ones."""
    pipe = store.pipeline(transaction=True)
    pipe.hgetall(keys.totals)
    pipe.lrange(keys.pending, 0, -1)
    totals, entries = pipe.execute()
    return Counter({name.decode(): int(value) for name, value in totals.items()}) + pending(entries)


def pending(entries: Iterable[bytes]) -> Counter[str]:
    """Return the sum of the entries of a list of pending counters."""
    total: Counter[str] = Counter()
    for _, counted in map(read_pending, entries):
        total.update(counted)
    return total


def record(store: redis.Redis, keys: Keys, turn_id: str) -> dict[str, str]:
    """Return a turn's record with its texts, or an empty dict if there is none."""
    stored: dict[Any, Any] = store.hgetall(keys.turn(turn_id))
    texts: dict[Any, Any] = store.hgetall(keys.texts(turn_id)) if stored else {}
    return {name.decode(): value.decode() for name, value in {**stored, **texts}.items()}
