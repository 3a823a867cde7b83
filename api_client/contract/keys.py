"""Every key helix-turns writes, named in one place.

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


def _named(name: str) -> cached_property[str]:
    """Declare one key, by its name."""
    return cached_property(lambda keys: f"{keys.prefix}{name}")


def _each(before: str, after: str = "", *, hashed: bool = False) -> cached_property[Callable[..., str]]:
    """Declare one key for each of something, by its name; ``hashed`` where a name may be anything."""

    def made(keys: Keys) -> Callable[..., str]:
        def key(*names: str) -> str:
            name = "\0".join(names)
            return f"{keys.prefix}{before}{session_digest(name) if hashed else name}{after}"

        return key

    return cached_property(made)


@dataclass(frozen=True)
class Keys:
    """The key names of one installation."""

    namespace: str
    prefix: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "prefix", f"{self.namespace}:{{{self.namespace}}}:")

    #: Hash: the turn's record.
    turn = _each("turn:")
    #: Hash: the turn's request and answer, apart from the record because they may be long.
    texts = _each("turn:", ":texts")
    #: Stream: the turn's events, of each command an entry, a line per event; its id is ``seq-0`` of the last.
    log = _each("turn:", ":log")
    #: Hash: the attempts, one field per attempt and fact, such as ``2:issues``.
    attempts = _each("turn:", ":attempts")
    #: Pub/sub channel: the same events as the log, for readers who are awake.
    bell = _each("turn:", ":bell")
    #: List: the session's unfinished turns in order; the head is the one that may run.
    session = _each("session:", hashed=True)
    #: The same, by the session's ``session_digest``.
    session_named = _each("session:")
    #: String: the worker process that keeps the session's agent for its next message; lives as long as that.
    affinity = _each("affinity:", hashed=True)
    #: Hash: the current snapshot of each session's files, by ``session_digest`` (``api_client.snapshots``).
    files = _named("files")
    #: String: the turn an idempotency key represents, and the hash of its body.
    idempotency = _each("idempotency:", hashed=True)
    #: String: the turn that answers a question, until its asker has it (``relay_state.open_questions``).
    asked = _each("asked:", hashed=True)
    #: String: when the owner may again submit as many turns at once as its limit says, in milliseconds.
    rate = _each("rate:", hashed=True)
    #: String: when the owner may again store as many bytes at once as its limit says, in milliseconds.
    stored = _each("stored:", hashed=True)
    #: Sorted set: the owner's turns that had not ended when this was last looked at, by when they were noted.
    unfinished = _each("unfinished:", hashed=True)

    def browser(self, token: str) -> str:
        """String: the key a browser is signed in with; the token itself is not stored."""
        digest = hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()
        return f"{self.prefix}browser:{digest}"

    #: String: signs the relay's links (``api_client.relay_state.SignedLinks``).
    link_key = _named("links:key")
    #: Hash: what Open WebUI was last seen to send (``api_client.relay_state``).
    openwebui_seen = _named("openwebui")
    #: Sorted set: when somebody must look at a turn again, in milliseconds of the store's clock.
    due = _named("due")
    #: Sorted set: finished turns by the time they finished, in milliseconds.
    finished = _named("finished")
    #: Sorted set: the dead letters, by the time they were given up.
    dead = _named("dead")
    #: Sorted set: turns that wait in the line for their first agent run, by owner (``store/lua/line.lua``).
    waiting = _named("line:waiting")
    #: Hash: what lets those turns go (JSON and message, by turn), and the clocks of the line.
    places = _named("line")
    #: Sorted set: owners by the time of the line at which their next turn of this priority may go.
    turns_of = _each("line:")
    #: Sorted set: turns that left the line and were not claimed yet, by when, in milliseconds.
    let_go = _named("line:let_go")
    #: Sorted set: turns that take a place of their owner, where its places are limited; by owner.
    at_work = _named("line:at_work")
    #: String: a worker that knows the line lives; for an hour.
    #: Hash: which worker claimed a probe, by queue; lives a minute.
    probe = _each("probe:")
    #: String: says that the store takes writes; lives a minute.
    written = _named("written")
    #: Hash: each worker process's last report on itself (JSON), by its name.
    workers = _named("workers")
    #: Channel: a worker process listens to it while the store takes no report; ``sign`` is when, ``:``, name.
    alive = _each("alive:")
    #: Hash: the last report (JSON) of worker processes that ended in peace, for a day.
    ended_workers = _named("workers:ended")
    #: Hash: what each worker process is ordered to do (``WorkerOrder``), by its name.
    orders = _named("orders")
    #: Stream: how processes of workers ended (``ProcessExit``); lives a month.
    exits = _named("exits")
    #: Hash: when a reaper last looked, and since when they look without a pause.
    reapers = _named("reapers")
    #: Hash: notices that are to be sent or were given up, by id.
    notices = _named("notices")
    #: Sorted set: when each of them is to be tried, in milliseconds.
    notices_due = _named("notices:due")
    #: Sorted set: those that were given up, by when.
    notices_dead = _named("notices:dead")
    #: Sorted set: every notice that was put, by when, so that none is put twice.
    notices_said = _named("notices:said")
    #: String: the process that sends notices now; lives a minute.
    notices_sender = _named("notices:sender")

    def notices_looked(self, listed: str) -> str:
        """String: turns before this time in a list (``finished``, ``inbox``) were looked at, in milliseconds."""
        return f"{self.prefix}notices:looked:{listed.rpartition(':')[2]}"

    #: String: a relay has just looked at this (``state``, ``stuck``).
    notices_watched = _each("notices:watched:")
    #: Hash: facts of the installation, such as ``GC_AT``.
    installation = _named("installation")
    #: Hash: policies by their hash (JSON), for the workers.
    policies = _named("policies")
    #: Sorted set: hashes of policies by their last submit, in milliseconds.
    policies_used = _named("policies:used")
    #: List: what ``turns replay-policy`` found of late (JSON), newest first.
    policy_replays = _named("policies:replays")
    #: Hash: flow versions that were rolled back (JSON, ``api_client.policies.RolledBack``).
    flows = _named("flows")
    #: String: the process that watches over flow versions now; lives for seconds.
    flow_guard = _named("flows:guard")
    #: Stream: what operators asked for, by whom and when.
    audit = _named("audit")
    #: Sorted set: suspended turns, which wait for a decision, by the time they were suspended, in milliseconds.
    inbox = _named("inbox")

    def spending(self, day: int) -> str:
        """Hash: what was spent on the day that began at this second, by scope (``api_client.budgets``)."""
        return f"{self.prefix}spending:{day}"

    #: Hash: what is set aside for turns that count for a budget, by turn (JSON).
    reservations = _named("spending:reserved")
    #: Hash: what the dearest run of each model lately cost, in millionths of a dollar.
    prices = _named("spending:prices")
    #: Hash: active pauses and breakers of models, by name (``lua/pauses.lua``).
    pauses = _named("pauses")
    #: Sorted set: turns that a pause holds back, by the time it began to, in milliseconds.
    held = _named("held")
    #: List: counters that are not yet in the hashes below, of each command an entry; see ``counters``.
    pending = _named("metrics:pending")
    #: String: how often pending counters were added to the hashes below.
    folds = _named("metrics:folds")
    #: Hash: counters since the beginning; never expires.
    totals = _named("metrics:total")

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
