"""Every key helix-turns writes, named in one place.

All keys of one shard carry the same hash tag ``{n}``, so each Lua command's keys share a slot and
sharding by session stays possible. Scripts touch only the keys they are given.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import lru_cache

from api_client.contract.turn import shard_of

#: Field of the installation's hash: when `turns gc` last ended, in seconds since the epoch.
GC_AT = "gc_at"
#: Another: the address that last forwarded one without being trusted, and when, in seconds since the epoch.
UNTRUSTED_PROXY = "untrusted_proxy"
#: Length of each metrics bucket, in seconds.
BUCKETS = {"minute": 60, "hour": 3_600, "day": 86_400}


@dataclass(frozen=True, slots=True)
class Keys:
    """The key names of one shard under one namespace."""

    namespace: str
    shard: int = 0
    _prefix: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_prefix", f"{self.namespace}:{{{self.shard}}}:")

    def turn(self, turn_id: str) -> str:
        """Hash: the turn's record."""
        return f"{self._prefix}turn:{turn_id}"

    def texts(self, turn_id: str) -> str:
        """Hash: the turn's request and answer, apart from the record because they may be long."""
        return f"{self._prefix}turn:{turn_id}:texts"

    def log(self, turn_id: str) -> str:
        """Stream: the turn's events, of each command an entry, a line per event; its id is ``seq-0`` of the last."""
        return f"{self._prefix}turn:{turn_id}:log"

    def attempts(self, turn_id: str) -> str:
        """Hash: the attempts, one field per attempt and fact, such as ``2:issues``."""
        return f"{self._prefix}turn:{turn_id}:attempts"

    def bell(self, turn_id: str) -> str:
        """Pub/sub channel: the same events as the log, for readers who are awake."""
        return f"{self._prefix}turn:{turn_id}:bell"

    def session(self, session_id: str) -> str:
        """List: the session's unfinished turns in order; the head is the one that may run."""
        return self.session_named(session_digest(session_id))

    def session_named(self, digest: str) -> str:
        """The same, by the session's ``session_digest``."""
        return f"{self._prefix}session:{digest}"

    def keeper(self, session_id: str) -> str:
        """String: the worker process that keeps the session's agent for its next message; lives as long as that."""
        return f"{self._prefix}keeper:{session_digest(session_id)}"

    @property
    def files(self) -> str:
        """Hash: the current snapshot of each session's files, by ``session_digest`` (``api_client.snapshots``)."""
        return f"{self._prefix}files"

    def idempotency(self, owner: str, key: str) -> str:
        """String: the turn an idempotency key represents, and the hash of its body."""
        digest = hashlib.sha256(f"{owner}\0{key}".encode("utf-8", "surrogatepass")).hexdigest()[:32]
        return f"{self._prefix}idempotency:{digest}"

    def reserved(self, owner: str, key: str) -> str:
        """String: as ``idempotency``, in a shard that follows from the key (``api_client.turns.submitter``)."""
        digest = hashlib.sha256(f"{owner}\0{key}".encode("utf-8", "surrogatepass")).hexdigest()[:32]
        return f"{self._prefix}reserved:{digest}"

    def asked(self, owner: str, question: str) -> str:
        """String: the turn that answers a question, until its asker has it (``relay_state.open_questions``)."""
        digest = hashlib.sha256(f"{owner}\0{question}".encode("utf-8", "surrogatepass")).hexdigest()[:32]
        return f"{self._prefix}asked:{digest}"

    def rate(self, owner: str) -> str:
        """String: when the owner may again submit as many turns at once as its limit says, in milliseconds."""
        digest = hashlib.sha256(owner.encode("utf-8", "surrogatepass")).hexdigest()[:32]
        return f"{self._prefix}rate:{digest}"

    def stored(self, owner: str) -> str:
        """String: when the owner may again store as many bytes at once as its limit says, in milliseconds."""
        digest = hashlib.sha256(owner.encode("utf-8", "surrogatepass")).hexdigest()[:32]
        return f"{self._prefix}stored:{digest}"

    def unfinished(self, owner: str) -> str:
        """Sorted set: the owner's turns that had not ended when this was last looked at, by when they were noted."""
        digest = hashlib.sha256(owner.encode("utf-8", "surrogatepass")).hexdigest()[:32]
        return f"{self._prefix}unfinished:{digest}"

    def browser(self, token: str) -> str:
        """String: the key a browser is signed in with; the token itself is not stored."""
        digest = hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()
        return f"{self._prefix}browser:{digest}"

    @property
    def link_key(self) -> str:
        """String: signs the relay's links (``api_client.relay_state.SignedLinks``); of the first shard only."""
        return f"{self._prefix}links:key"

    @property
    def openwebui_seen(self) -> str:
        """Hash: what Open WebUI was last seen to send (``api_client.relay_state``)."""
        return f"{self._prefix}openwebui"

    @property
    def due(self) -> str:
        """Sorted set: when somebody must look at a turn again, in milliseconds of the store's clock."""
        return f"{self._prefix}due"

    @property
    def finished(self) -> str:
        """Sorted set: finished turns by the time they finished, in milliseconds."""
        return f"{self._prefix}finished"

    @property
    def dead(self) -> str:
        """Sorted set: the dead letters, by the time they were given up."""
        return f"{self._prefix}dead"

    @property
    def waiting(self) -> str:
        """Sorted set: turns that wait in the line for their first agent run, by owner (``store/lua/line.lua``)."""
        return f"{self._prefix}line:waiting"

    @property
    def places(self) -> str:
        """Hash: what lets those turns go (JSON and message, by turn), and the clocks of the line."""
        return f"{self._prefix}line"

    def turns_of(self, priority: str) -> str:
        """Sorted set: owners by the time of the line at which their next turn of this priority may go."""
        return f"{self._prefix}line:{priority}"

    @property
    def let_go(self) -> str:
        """Sorted set: turns that left the line and were not claimed yet, by when, in milliseconds."""
        return f"{self._prefix}line:let_go"

    @property
    def at_work(self) -> str:
        """Sorted set: turns that take a place of their owner, where its places are limited; by owner."""
        return f"{self._prefix}line:at_work"

    @property
    def line_known(self) -> str:
        """String: a worker that knows the line lives; for an hour."""
        return f"{self._prefix}line:known"

    def probe(self, nonce: str) -> str:
        """Hash: which worker claimed a probe, by queue; lives a minute. Of the first shard only."""
        return f"{self._prefix}probe:{nonce}"

    @property
    def written(self) -> str:
        """String: says that the store takes writes; lives a minute. Of the first shard only."""
        return f"{self._prefix}written"

    @property
    def workers(self) -> str:
        """Hash: each worker process's last report on itself (JSON), by its name; of the first shard only."""
        return f"{self._prefix}workers"

    def alive(self, sign: str) -> str:
        """Channel: a worker process listens to it while the store takes no report; ``sign`` is when, ``:``, name."""
        return f"{self._prefix}alive:{sign}"

    @property
    def ended_workers(self) -> str:
        """Hash: the last report (JSON) of worker processes that ended in peace, for a day; first shard only."""
        return f"{self._prefix}workers:ended"

    @property
    def orders(self) -> str:
        """Hash: what each worker process is ordered to do (``WorkerOrder``), by its name; of the first shard only."""
        return f"{self._prefix}orders"

    @property
    def exits(self) -> str:
        """Stream: how processes of workers ended (``ProcessExit``); lives a month. Of the first shard only."""
        return f"{self._prefix}exits"

    @property
    def reapers(self) -> str:
        """Hash: when a reaper last looked, and since when they look without a pause; of the first shard only."""
        return f"{self._prefix}reapers"

    @property
    def notices(self) -> str:
        """Hash: notices that are to be sent or were given up, by id (``worker.notices``); of the first shard only."""
        return f"{self._prefix}notices"

    @property
    def notices_due(self) -> str:
        """Sorted set: when each of them is to be tried, in milliseconds; of the first shard only."""
        return f"{self._prefix}notices:due"

    @property
    def notices_dead(self) -> str:
        """Sorted set: those that were given up, by when; of the first shard only."""
        return f"{self._prefix}notices:dead"

    @property
    def notices_said(self) -> str:
        """Sorted set: every notice that was put, by when, so that none is put twice; of the first shard only."""
        return f"{self._prefix}notices:said"

    @property
    def notices_sender(self) -> str:
        """String: the process that sends notices now; lives a minute. Of the first shard only."""
        return f"{self._prefix}notices:sender"

    def notices_looked(self, listed: str) -> str:
        """String: turns before this time in a list (``finished``, ``inbox``) were looked at, in milliseconds."""
        return f"{self._prefix}notices:looked:{listed.rpartition(':')[2]}"

    def notices_watched(self, what: str) -> str:
        """String: a relay has just looked at this (``state``, ``stuck``); of the first shard only."""
        return f"{self._prefix}notices:watched:{what}"

    @property
    def installation(self) -> str:
        """Hash: what must never change, such as the number of shards; of the first shard only."""
        return f"{self._prefix}installation"

    @property
    def policies(self) -> str:
        """Hash: policies by their hash (JSON), for the workers; of the first shard only."""
        return f"{self._prefix}policies"

    @property
    def policies_used(self) -> str:
        """Sorted set: hashes of policies by their last submit, in milliseconds; of the first shard only."""
        return f"{self._prefix}policies:used"

    @property
    def policy_replays(self) -> str:
        """List: what ``turns replay-policy`` found of late (JSON), newest first; of the first shard only."""
        return f"{self._prefix}policies:replays"

    @property
    def flows(self) -> str:
        """Hash: flow versions that were rolled back (JSON, ``policies.flows.RolledBack``); of the first shard only."""
        return f"{self._prefix}flows"

    @property
    def flow_guard(self) -> str:
        """String: the process that watches over flow versions now; lives for seconds. Of the first shard only."""
        return f"{self._prefix}flows:guard"

    @property
    def audit(self) -> str:
        """Stream: what operators asked for, by whom and when; of the first shard only."""
        return f"{self._prefix}audit"

    @property
    def phase_folders(self) -> str:
        """Set: folders whose phases were run, relative to HELIX_ROOT, for ``turns gc``; of the first shard only."""
        return f"{self._prefix}phase_folders"

    @property
    def traced(self) -> str:
        """String: finished turns before this time, in milliseconds, were sent as traces (``api_client.tracing``)."""
        return f"{self._prefix}traced"

    @property
    def inbox(self) -> str:
        """Sorted set: parked turns, which wait for a decision, by the time they were parked, in milliseconds."""
        return f"{self._prefix}inbox"

    def spending(self, day: int) -> str:
        """Hash: what was spent on the day that began at this second, by scope (``api_client.budgets``); first shard."""
        return f"{self._prefix}spending:{day}"

    @property
    def reservations(self) -> str:
        """Hash: what is set aside for turns that count for a budget, by turn (JSON); of the first shard only."""
        return f"{self._prefix}spending:reserved"

    @property
    def prices(self) -> str:
        """Hash: what the dearest run of each model lately cost, in millionths of a dollar; of the first shard only."""
        return f"{self._prefix}spending:prices"

    @property
    def pauses(self) -> str:
        """Hash: active pauses and breakers of models, by name (``lua/pauses.lua``)."""
        return f"{self._prefix}pauses"

    @property
    def held(self) -> str:
        """Sorted set: turns that a pause holds back, by the time it began to, in milliseconds."""
        return f"{self._prefix}held"

    @property
    def pending(self) -> str:
        """List: counters that are not yet in the hashes below, of each command an entry; see ``counters``."""
        return f"{self._prefix}metrics:pending"

    @property
    def folds(self) -> str:
        """String: how often pending counters were added to the hashes below."""
        return f"{self._prefix}metrics:folds"

    @property
    def totals(self) -> str:
        """Hash: counters since the beginning; never expires."""
        return f"{self._prefix}metrics:total"

    def bucket(self, size: str, at: float) -> str:
        """Hash: counters of the minute, hour or day that contains ``at`` (seconds since the epoch)."""
        seconds = BUCKETS[size]
        return f"{self._prefix}metrics:{size}:{int(at) // seconds * seconds}"

    def metrics(self, at: float) -> list[str]:
        """The four hashes a change adds its counters to: total, minute, hour, day."""
        return [self.totals, *(self.bucket(size, at) for size in BUCKETS)]


def session_digest(session_id: str) -> str:
    """The name of a session in keys and in an object store."""
    return hashlib.sha256(session_id.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def shard_for(text: str, shards: int) -> int:
    """Texts are spread over the shards by hash; sessions are, so that one session's turns share one."""
    return int.from_bytes(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:4], "big") % shards


@lru_cache(maxsize=4096)  # asked for again with each command of a turn
def keys_of(namespace: str, turn_id: str) -> Keys:
    """The keys of the shard a turn lives in.

    Raises:
        ValueError: not a turn id.
    """
    return Keys(namespace, shard_of(turn_id))
