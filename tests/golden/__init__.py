"""What earlier versions stored: all keys of a namespace, as JSON."""

from typing import Any

import redis

#: In the year 2100, in milliseconds.
_FAR = 4_102_444_800_000
#: How a value of each kind is read as JSON.
_READ = {
    b"string": lambda store, key: store.get(key).decode(),
    b"hash": lambda store, key: {name.decode(): text.decode() for name, text in store.hgetall(key).items()},
    b"list": lambda store, key: [text.decode() for text in store.lrange(key, 0, -1)],
    b"set": lambda store, key: sorted(text.decode() for text in store.smembers(key)),
    b"zset": lambda store, key: [[text.decode(), score] for text, score in store.zrange(key, 0, -1, withscores=True)],
    b"stream": lambda store, key: [
        [number.decode(), {name.decode(): text.decode() for name, text in entry.items()}]
        for number, entry in store.xrange(key)
    ],
}


def stored(store: redis.Redis, prefix: str) -> dict[str, Any]:
    """All keys below a prefix, without it: kind and value. No deadline in them ever passes."""
    found = {}
    for key in sorted(store.scan_iter(match=f"{prefix}*", count=1000)):
        kind = store.type(key)
        value = _READ[kind](store, key)
        if kind == b"hash":
            value |= {name: str(_FAR) for name in ("deadline_at", "decide_by") if name in value}
        found[key.decode().removeprefix(prefix)] = [kind.decode(), value]
    return found


def restore(store: redis.Redis, prefix: str, keys: dict[str, Any]) -> None:
    """Store all keys again below a prefix."""
    for name, (kind, value) in keys.items():
        key = f"{prefix}{name}"
        match kind:
            case "string":
                store.set(key, value)
            case "hash":
                store.hset(key, mapping=value)
            case "list":
                store.rpush(key, *value)
            case "set":
                store.sadd(key, *value)
            case "zset":
                store.zadd(key, dict(value))
            case "stream":
                for number, entry in value:
                    store.xadd(key, entry, id=number)
