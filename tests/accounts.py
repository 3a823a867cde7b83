"""Compares the stored counters with the sums over the turns' event logs, in a real store."""

from collections import Counter

import redis

from api_client.contract.events import Event
from api_client.contract.keys import Keys
from api_client.contract.settings import Settings
from tests import records
from tests.chaos.checker.counters import folded


def disagreements(settings: Settings) -> dict[str, tuple[int, int]]:
    """Return every counter that differs from the sum over the logs, as name -> (stored, expected)."""
    told: Counter[str] = Counter()
    stored: Counter[str] = Counter()
    with redis.Redis.from_url(settings.redis_url) as store:
        keys = Keys(settings.namespace)
        stored.update(records.counters(store, keys))
        for key in store.scan_iter(keys.log("*"), count=1000):
            turn_id = key.decode().rsplit(":", 2)[1]
            record = records.record(store, keys, turn_id)
            if not record:
                return {}  # the test took a record away: nobody can say what belongs to it
            log = [event.to_dict() for _, fields in store.xrange(key) for event in Event.decode_entry(fields[b"e"])]
            told.update(folded(record, log))
    return {
        name: (stored[name], told[name])
        for name in told | stored
        if stored[name] != told[name] and not name.startswith("breaker.")
    }
