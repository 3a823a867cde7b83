"""The names of keys: those of turns and their queues. What else is stored names its keys where it is stored.

All keys of an installation carry its namespace as their hash tag, so they share one slot of a Redis Cluster, and one
Lua command may change any of them. Scripts touch only the keys they are given.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

from api_client.contract.turn import check_turn_id

#: Field of the installation's hash: when `turns gc` last ended, in seconds since the epoch.
GC_AT = "gc_at"
#: Another: the address that last forwarded one without being trusted, and when, in seconds since the epoch.
UNTRUSTED_PROXY = "untrusted_proxy"
#: Length of each metrics bucket, in seconds.
BUCKETS = {"minute": 60, "hour": 3_600, "day": 86_400}


def named(name: str) -> cached_property[str]:
    """Declare one key, by its name."""
    return cached_property(lambda keys: f"{keys.prefix}{name}")


def named_each(before: str, after: str = "", *, hashed: bool = False) -> cached_property[Callable[..., str]]:
    """Declare one key for each of something, by its name; ``hashed`` where a name may be anything."""

    def made(keys: KeyNames) -> Callable[..., str]:
        def key(*names: str) -> str:
            name = "\0".join(names)
            return f"{keys.prefix}{before}{session_digest(name) if hashed else name}{after}"

        return key

    return cached_property(made)


@dataclass(frozen=True)
class KeyNames:
    """The names of an installation's keys that have one subject."""

    namespace: str
    prefix: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "prefix", f"{self.namespace}:{{{self.namespace}}}:")

    def named(self, name: str) -> str:
        """Return the key of this name."""
        return self.prefix + name


class Keys(KeyNames):
    """The names of the keys of turns, of their queues and workers, and of counters."""

    #: Hash: the turn's record.
    turn = named_each("turn:")
    #: Hash: the turn's request and answer, apart from the record because they may be long.
    texts = named_each("turn:", ":texts")
    #: Stream: the turn's events, of each command an entry, a line per event; its id is ``seq-0`` of the last.
    log = named_each("turn:", ":log")
    #: Hash: the attempts, one field per attempt and fact, such as ``2:issues``.
    attempts = named_each("turn:", ":attempts")
    #: Pub/sub channel: the same events as the log, for readers who are awake.
    bell = named_each("turn:", ":bell")
    #: List: the session's unfinished turns in order; the head is the one that may run.
    session = named_each("session:", hashed=True)
    #: The same, by the session's ``session_digest``.
    session_named = named_each("session:")
    #: String: the worker process that keeps the session's agent for its next message; lives as long as that.
    affinity = named_each("affinity:", hashed=True)
    #: Hash: the current version of each session's files, by ``session_digest``.
    files = named("files")
    #: String: the turn an idempotency key represents, and the hash of its body.
    idempotency = named_each("idempotency:", hashed=True)
    #: String: the turn that answers a question, until its asker has it (``relay_state.open_questions``).
    asked = named_each("asked:", hashed=True)
    #: String: when the owner may again submit as many turns at once as its limit says, in milliseconds.
    rate = named_each("rate:", hashed=True)
    #: String: when the owner may again store as many bytes at once as its limit says, in milliseconds.
    stored = named_each("stored:", hashed=True)
    #: Sorted set: the owner's turns that had not ended when this was last looked at, by when they were noted.
    unfinished = named_each("unfinished:", hashed=True)

    def browser(self, token: str) -> str:
        """String: the key a browser is signed in with; the token itself is not stored."""
        digest = hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()
        return f"{self.prefix}browser:{digest}"

    #: String: signs the relay's links (``api_client.relay_state.SignedLinks``).
    link_key = named("links:key")
    #: Hash: what Open WebUI was last seen to send (``api_client.relay_state``).
    openwebui_seen = named("openwebui")
    #: Sorted set: when somebody must look at a turn again, in milliseconds of the store's clock.
    due = named("due")
    #: Sorted set: finished turns by the time they finished, in milliseconds.
    finished = named("finished")
    #: Sorted set: the dead letters, by the time they were given up.
    dead = named("dead")
    #: Sorted set: turns that wait in the line for their first agent run, by owner (``store/lua/line.lua``).
    waiting = named("line:waiting")
    #: Hash: what lets those turns go (JSON and message, by turn), and the clocks of the line.
    places = named("line")
    #: Sorted set: owners by the time of the line at which their next turn of this priority may go.
    turns_of = named_each("line:")
    #: Sorted set: turns that left the line and were not claimed yet, by when, in milliseconds.
    let_go = named("line:let_go")
    #: Sorted set: turns that take a place of their owner, where its places are limited; by owner.
    at_work = named("line:at_work")
    #: Hash: which worker claimed a probe, by queue; lives a minute.
    probe = named_each("probe:")
    #: String: says that the store takes writes; lives a minute.
    written = named("written")
    #: Hash: each worker process's last report on itself (JSON), by its name.
    workers = named("workers")
    #: Channel: a worker process listens to it while the store takes no report; ``sign`` is when, ``:``, name.
    alive = named_each("alive:")
    #: Hash: the last report (JSON) of worker processes that ended in peace, for a day.
    ended_workers = named("workers:ended")
    #: Hash: what each worker process is ordered to do (``WorkerOrder``), by its name.
    orders = named("orders")
    #: Stream: how processes of workers ended (``ProcessExit``); lives a month.
    exits = named("exits")
    #: Hash: when a reaper last looked, and since when they look without a pause.
    reapers = named("reapers")
    #: Hash: facts of the installation, such as ``GC_AT``.
    installation = named("installation")
    #: Hash: policies by their hash (JSON), for the workers.
    policies = named("policies")
    #: Sorted set: suspended turns, which wait for a decision, by the time they were suspended, in milliseconds.
    suspended = named("inbox")
    #: Hash: active pauses and breakers of models, by name (``lua/pauses.lua``).
    pauses = named("pauses")
    #: Sorted set: turns that a pause holds back, by the time it began to, in milliseconds.
    held = named("held")
    #: List: counters that are not yet in the hashes below, of each command an entry; see ``counters``.
    pending = named("metrics:pending")

    @property
    def of_all_turns(self) -> tuple[str, ...]:
        """The keys that a change of any turn may touch, in the order ``store/lua/record.lua`` names them."""
        return (self.due, self.finished, self.dead, self.suspended, self.pending, self.pauses, self.held)

    #: String: how often pending counters were added to the hashes below.
    folds = named("metrics:folds")
    #: Hash: counters since the beginning; never expires.
    totals = named("metrics:total")

    def bucket(self, size: str, at: float) -> str:
        """Hash: counters of the minute, hour or day that contains ``at`` (seconds since the epoch)."""
        seconds = BUCKETS[size]
        return f"{self.prefix}metrics:{size}:{int(at) // seconds * seconds}"

    def metrics(self, at: float) -> list[str]:
        """The four hashes a change adds its counters to: total, minute, hour, day."""
        return [self.totals, *(self.bucket(size, at) for size in BUCKETS)]


def session_digest(session_id: str) -> str:
    """The name of a session, or of another text that may be anything, in keys and in an object store."""
    return hashlib.sha256(session_id.encode("utf-8", "surrogatepass")).hexdigest()[:32]


@lru_cache(maxsize=256)  # asked for again with each command of a turn in flight: a process works on fewer
def keys_of(namespace: str, turn_id: str) -> Keys:
    """Return the keys of a turn's installation. Raises ``ValueError``: not a turn id."""
    check_turn_id(turn_id)
    return _keys_of_namespace(namespace)


_keys_of_namespace = lru_cache(maxsize=64)(Keys)
