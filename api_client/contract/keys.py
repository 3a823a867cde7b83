"""Every key helix-turns writes, named in one place.

All keys of one shard carry the same hash tag ``{n}``, so each Lua command's keys share a slot and
sharding by session stays possible. Scripts touch only the keys they are given.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

from api_client.contract.turn import shard_of

#: Field of the installation's hash: when `turns gc` last ended, in seconds since the epoch.
GC_AT = "gc_at"
#: Another: the address that last forwarded one without being trusted, and when, in seconds since the epoch.
UNTRUSTED_PROXY = "untrusted_proxy"
#: Length of each metrics bucket, in seconds.
BUCKETS = {"minute": 60, "hour": 3_600, "day": 86_400}


def _named(name: str) -> cached_property[str]:
    """One key of each shard, by its name."""
    return cached_property(lambda keys: f"{keys.prefix}{name}")


def _each(before: str, after: str = "", *, hashed: bool = False) -> cached_property[Callable[..., str]]:
    """One key of each shard for each of something, by its name; ``hashed`` where a name may be anything."""

    def made(keys: Keys) -> Callable[..., str]:
        def key(*names: str) -> str:
            name = "\0".join(names)
            return f"{keys.prefix}{before}{session_digest(name) if hashed else name}{after}"

        return key

    return cached_property(made)


@dataclass(frozen=True)
class Keys:
    """The key names of one shard under one namespace."""

    namespace: str
    shard: int = 0
    prefix: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "prefix", f"{self.namespace}:{{{self.shard}}}:")

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
    keeper = _each("keeper:", hashed=True)
    #: Hash: the current snapshot of each session's files, by ``session_digest`` (``api_client.snapshots``).
    files = _named("files")
    #: String: the turn an idempotency key represents, and the hash of its body.
    idempotency = _each("idempotency:", hashed=True)
    #: String: as ``idempotency``, in a shard that follows from the key (``api_client.turns.submitter``).
    reserved = _each("reserved:", hashed=True)
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

    #: String: signs the relay's links (``api_client.relay_state.SignedLinks``); of the first shard only.
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
    line_known = _named("line:known")
    #: Hash: which worker claimed a probe, by queue; lives a minute. Of the first shard only.
    probe = _each("probe:")
    #: String: says that the store takes writes; lives a minute. Of the first shard only.
    written = _named("written")
    #: Hash: each worker process's last report on itself (JSON), by its name; of the first shard only.
    workers = _named("workers")
    #: Channel: a worker process listens to it while the store takes no report; ``sign`` is when, ``:``, name.
    alive = _each("alive:")
    #: Hash: the last report (JSON) of worker processes that ended in peace, for a day; first shard only.
    ended_workers = _named("workers:ended")
    #: Hash: what each worker process is ordered to do (``WorkerOrder``), by its name; of the first shard only.
    orders = _named("orders")
    #: Stream: how processes of workers ended (``ProcessExit``); lives a month. Of the first shard only.
    exits = _named("exits")
    #: Hash: when a reaper last looked, and since when they look without a pause; of the first shard only.
    reapers = _named("reapers")
    #: Hash: notices that are to be sent or were given up, by id (``worker.notices``); of the first shard only.
    notices = _named("notices")
    #: Sorted set: when each of them is to be tried, in milliseconds; of the first shard only.
    notices_due = _named("notices:due")
    #: Sorted set: those that were given up, by when; of the first shard only.
    notices_dead = _named("notices:dead")
    #: Sorted set: every notice that was put, by when, so that none is put twice; of the first shard only.
    notices_said = _named("notices:said")
    #: String: the process that sends notices now; lives a minute. Of the first shard only.
    notices_sender = _named("notices:sender")

    def notices_looked(self, listed: str) -> str:
        """String: turns before this time in a list (``finished``, ``inbox``) were looked at, in milliseconds."""
        return f"{self.prefix}notices:looked:{listed.rpartition(':')[2]}"

    #: String: a relay has just looked at this (``state``, ``stuck``); of the first shard only.
    notices_watched = _each("notices:watched:")
    #: Hash: what must never change, such as the number of shards; of the first shard only.
    installation = _named("installation")
    #: Hash: policies by their hash (JSON), for the workers; of the first shard only.
    policies = _named("policies")
    #: Sorted set: hashes of policies by their last submit, in milliseconds; of the first shard only.
    policies_used = _named("policies:used")
    #: List: what ``turns replay-policy`` found of late (JSON), newest first; of the first shard only.
    policy_replays = _named("policies:replays")
    #: Hash: flow versions that were rolled back (JSON, ``api_client.policies.RolledBack``); of the first shard only.
    flows = _named("flows")
    #: String: the process that watches over flow versions now; lives for seconds. Of the first shard only.
    flow_guard = _named("flows:guard")
    #: Stream: what operators asked for, by whom and when; of the first shard only.
    audit = _named("audit")
    #: Set: folders whose phases were run, relative to HELIX_ROOT, for ``turns gc``; of the first shard only.
    phase_folders = _named("phase_folders")
    #: String: finished turns before this time, in milliseconds, were sent as traces (``api_client.tracing``).
    traced = _named("traced")
    #: Sorted set: parked turns, which wait for a decision, by the time they were parked, in milliseconds.
    inbox = _named("inbox")

    def spending(self, day: int) -> str:
        """Hash: what was spent on the day that began at this second, by scope (``api_client.budgets``); first shard."""
        return f"{self.prefix}spending:{day}"

    #: Hash: what is set aside for turns that count for a budget, by turn (JSON); of the first shard only.
    reservations = _named("spending:reserved")
    #: Hash: what the dearest run of each model lately cost, in millionths of a dollar; of the first shard only.
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


def shard_for(text: str, shards: int) -> int:
    """Texts are spread over the shards by hash; sessions are, so that one session's turns share one."""
    return int.from_bytes(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:4], "big") % shards


@lru_cache(maxsize=256)  # asked for again with each command of a turn in flight: a process works on fewer
def keys_of(namespace: str, turn_id: str) -> Keys:
    """The keys of the shard a turn lives in. Raises ``ValueError``: not a turn id."""
    return _of_shard(namespace, shard_of(turn_id))


_of_shard = lru_cache(maxsize=1024)(Keys)
