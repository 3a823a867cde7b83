"""Names of the Redis keys of turns and their queues.

The namespace is the hash tag of all keys, so they share one slot of a Redis Cluster and one Lua command may change any
of them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

from api_client.contract.turn import check_turn_id

#: Field of the installation's hash: when `turns data gc` last ended, in seconds since the epoch.
GC_AT = "gc_at"
#: Field of the installation's hash: the last untrusted address that sent a forwarding header, and its time (epoch
#: seconds).
UNTRUSTED_PROXY = "untrusted_proxy"
#: Length of each metrics bucket, in seconds.
BUCKETS = {"minute": 60, "hour": 3_600, "day": 86_400}


def named_key(name: str) -> cached_property[str]:
    return cached_property(lambda keys: f"{keys.prefix}{name}")


def named_keys(before: str, after: str = "", *, hashed: bool = False) -> cached_property[Callable[..., str]]:
    """Declare a class attribute with a function that builds Redis keys from ids, such as ``keys.turn(turn_id)``."""

    def make_key_function(keys: KeyNames) -> Callable[..., str]:
        def make_key(*names: str) -> str:
            name = "\0".join(names)
            return f"{keys.prefix}{before}{session_digest(name) if hashed else name}{after}"

        return make_key

    return cached_property(make_key_function)


@dataclass(frozen=True)
class KeyNames:
    """Base class for the Redis key names of one installation."""

    namespace: str
    prefix: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "prefix", f"{self.namespace}:{{{self.namespace}}}:")

    def key_named(self, name: str) -> str:
        """Return the full Redis key for ``name``, including the installation's prefix."""
        return self.prefix + name


class Keys(KeyNames):
    """Names the Redis keys of turns, queues, workers and counters."""

    #: Hash: the turn's record.
    turn = named_keys("turn:")
    #: Hash: the turn's request and answer, separate from the record because they may be long.
    texts = named_keys("turn:", ":texts")
    #: Stream: the turn's events; one entry a command, one line an event; the entry's id is ``seq-0`` of its last
    #: event.
    log = named_keys("turn:", ":log")
    #: Hash: the attempts, one field for each attempt and fact, such as ``2:issues``.
    attempts = named_keys("turn:", ":attempts")
    #: Pub/sub channel: the events of the log, for readers that are connected.
    wake_up_channel = named_keys("turn:", ":bell")
    #: List: the session's unfinished turns in order; only the head may run.
    session = named_keys("session:", hashed=True)
    #: Hash: earlier messages of the session's turns, each stored once (``store/lua/history.lua``).
    history = named_keys("session:", ":history", hashed=True)
    #: The session's list, by the session's ``session_digest``.
    session_named = named_keys("session:")
    #: String: the worker process that keeps the session's agent for the next message; expires with the agent.
    affinity = named_keys("affinity:", hashed=True)
    #: Hash: the current version of each session's files, by ``session_digest``.
    files = named_key("files")
    #: String: the turn of an idempotency key, and the hash of its request body.
    idempotency = named_keys("idempotency:", hashed=True)
    #: String: the turn that answers a question, until its caller has the answer (``relay_state.open_questions``).
    asked = named_keys("asked:", hashed=True)
    #: String: when the owner's limit of turns at once is available in full again, in milliseconds.
    rate = named_keys("rate:", hashed=True)
    #: String: when the owner's limit of stored bytes is available in full again, in milliseconds.
    stored = named_keys("stored:", hashed=True)
    #: Sorted set: the owner's unfinished turns at the last look, by the time they were noted.
    unfinished = named_keys("unfinished:", hashed=True)

    def browser_key(self, token: str) -> str:
        """Return the Redis key for a browser's sign-in, which contains only a hash of the token."""
        digest = hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()
        return f"{self.prefix}browser:{digest}"

    #: String: the secret that signs the relay's links (``api_client.relay_state.SignedLinks``).
    link_key = named_key("links:key")
    #: Hash: what Open WebUI was last seen to send (``api_client.relay_state``).
    openwebui_seen = named_key("openwebui")
    #: Sorted set: turns by the time at which they must be looked at again, in milliseconds of the store's clock.
    due = named_key("due")
    #: Sorted set: finished turns by the time they finished, in milliseconds.
    finished = named_key("finished")
    #: Sorted set: dead letters by the time they were given up.
    dead = named_key("dead")
    #: Sorted set: turns that wait in the fair queue for their first agent run, by owner, each with the message that
    #: announces it (``store/lua/fair_queue.lua``).
    waiting = named_key("fair_queue:waiting")
    #: Hash: how many interactive turns started since the last background turn.
    shares = named_key("fair_queue")
    #: Sorted set: owners by the virtual time at which their next turn of this priority may start.
    turns_of = named_keys("fair_queue:")
    #: Sorted set: turns that left the fair queue and are not leased yet, by time in milliseconds.
    released = named_key("fair_queue:released")
    #: Sorted set: turns that count against their owner's limit of agents at once, by owner.
    at_work = named_key("fair_queue:at_work")
    #: Hash: which worker took a probe, by queue; expires after a minute.
    probe = named_keys("probe:")
    #: String: proof that the store accepts writes; expires after a minute.
    written = named_key("written")
    #: Hash: the last report (JSON) of each worker process, by process name.
    workers = named_key("workers")
    #: Channel to which a worker subscribes while the store accepts no writes; ``sign`` is time, ``:``, name.
    alive = named_keys("alive:")
    #: Hash: the last report (JSON) of worker processes that exited cleanly, kept for a day.
    ended_workers = named_key("workers:ended")
    #: Hash: orders to worker processes (``WorkerOrder``), by process name.
    orders = named_key("orders")
    #: Stream: exits of worker processes (``ProcessExit``), kept for a month.
    exits = named_key("exits")
    #: Hash: when a reaper last ran, and since when reapers have run without a gap.
    reapers = named_key("reapers")
    #: Hash: facts of the installation, such as ``GC_AT``.
    installation = named_key("installation")
    #: Hash: policies (JSON) by their hash, for the workers.
    policies = named_key("policies")
    #: Sorted set: suspended turns by the time they were suspended, in milliseconds.
    suspended = named_key("inbox")
    #: Hash: active pauses and circuit breakers of models, by name (``lua/pauses.lua``).
    pauses = named_key("pauses")
    #: Sorted set: turns that a pause holds back, by the time the hold began, in milliseconds.
    held = named_key("held")
    #: List: counters that are not yet in the metrics hashes, one entry a command; see ``counters``.
    pending = named_key("metrics:pending")

    @property
    def of_all_turns(self) -> tuple[str, ...]:
        """Return the keys that a change of any turn may affect, in the order that the Lua scripts expect."""
        return (self.due, self.finished, self.dead, self.suspended, self.pending, self.pauses, self.held)

    #: String: how often pending counters were added to the metrics hashes.
    folds = named_key("metrics:folds")
    #: Hash: counters since the beginning; never expires.
    totals = named_key("metrics:total")

    def bucket_key(self, size: str, at: float) -> str:
        """Return the key of the counters for the minute, hour or day that contains the time ``at``."""
        seconds = BUCKETS[size]
        return f"{self.prefix}metrics:{size}:{int(at) // seconds * seconds}"


def session_digest(session_id: str) -> str:
    """Return a hash of fixed length that represents a session id in keys and object names."""
    return hashlib.sha256(session_id.encode("utf-8", "surrogatepass")).hexdigest()[:32]


@lru_cache(maxsize=256)
def keys_for_turn(namespace: str, turn_id: str) -> Keys:
    """Return the Redis key names of a turn. Raises ``ValueError`` if ``turn_id`` is invalid."""
    check_turn_id(turn_id)
    return _keys_of_namespace(namespace)


_keys_of_namespace = lru_cache(maxsize=64)(Keys)
