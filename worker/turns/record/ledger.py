"""The ledger: the turn records in Redis, and the only way a worker changes them.

Every change is one Lua command. A lost reply is no problem: a claim is recognised by its token, a command of a token
holder by its number, and everything else may happen twice.
"""

from __future__ import annotations

import json
import secrets
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import redis
import structlog
from redis.exceptions import OutOfMemoryError, ReadOnlyError, RedisError, ResponseError

from api_client.contract.commands import CANCEL, command_text, common_settings, turn_keys
from api_client.contract.keys import Keys, keys_of
from api_client.contract.record import decode_attempts, decode_turn
from api_client.contract.settings import Settings
from api_client.contract.tasks import Link
from api_client.contract.turn import AttemptRecord, Turn
from worker.turns.record.store import connect, patiently
from worker.turns.record.told import Told
from worker.turns.transitions.moves import EventData, Move

log = structlog.get_logger()

_LUA = Path(__file__).with_name("lua")
#: Errors of a store that takes no writes at all: no fault of the turn.
_REFUSALS = (OutOfMemoryError, ReadOnlyError)
#: A turn whose record cannot be handled is looked at again so much later.
_DAMAGED_SECONDS = 60.0
_FORGOT = "the store lost acknowledged writes; see docs/reliability.md, What a store forgets"


class Fenced(Exception):
    """The turn is no longer ours: another worker has it, or it has ended. Whatever we did must not count."""


@dataclass(slots=True)
class Claim:
    """A turn held for one link of its chain.

    Attributes:
        taken_at: when the claim was asked for, by ``time.monotonic()``.
        seconds_left: time to the turn's deadline at that moment, by the store's clock.
        accepted: what an earlier holder accepted and did not commit (``accepted.py``), or empty.
        told: what the holder told the turn's log.
    """

    turn: Turn
    link: Link
    token: str
    taken_at: float
    seconds_left: float
    accepted: str = ""
    told: Told = field(default_factory=Told)


@dataclass(frozen=True, slots=True)
class Refusal:
    """The turn was not there to be taken; ``why`` is one word for the log."""

    why: str


@dataclass(frozen=True, slots=True)
class Committed:
    """What a commit led to: ``head`` is the session's next turn or empty, ``outcome`` is set when the turn ended."""

    head: str
    outcome: str


@dataclass(frozen=True, slots=True)
class Reaped:
    """What a reaper found and did: see ``reap.lua``."""

    what: str
    link: str
    session_id: str
    head: str
    outcome: str


class Ledger:
    """The Lua commands of a worker. Used by many threads at once.

    Every method raises ``redis.exceptions.RedisError`` when the store stays away, unless it says otherwise.
    """

    def __init__(self, settings: Settings, worker: str, store: redis.Redis | None = None) -> None:
        self.settings = settings
        self.worker = worker
        self._redis = store or connect(settings)
        self._common = common_settings(settings)
        names = ("claim", "beat", "append", "seal", "commit", "reap")
        paths = {name: _LUA / f"{name}.lua" for name in names} | {"cancel": CANCEL}
        self._scripts = {name: self._redis.register_script(command_text(path)) for name, path in paths.items()}

    def _call(self, name: str, turn_id: str, session_id: str, *args: Any) -> Any:
        keys = turn_keys(self.settings.namespace, turn_id, session_id, time.time())
        bell = keys_of(self.settings.namespace, turn_id).bell(turn_id)
        return self._scripts[name](keys=keys, args=[bell, turn_id, self._common, *args])

    @property
    def _lease_ms(self) -> int:
        return int(self.settings.lease_seconds * 1000)

    def claim(self, turn_id: str, session_id: str, link: Link, *, alone: bool = False) -> Claim | Refusal:
        """Take the turn for ``link``, if that is what comes next and nobody holds it.

        A turn that is one strike from being dead is refused as ``alone`` to every process that also does other work.
        """
        token, taken_at = secrets.token_hex(12), time.monotonic()
        args = (str(link), token, self._lease_ms, json.dumps(self.worker), int(alone), self.settings.strikes)
        reply = patiently(lambda: self._call("claim", turn_id, session_id, *args))
        if reply[0] == b"refused":
            return Refusal(reply[1].decode())
        now, pairs = int(reply[1]) / 1000, reply[2:]
        record = dict(zip(pairs[::2], pairs[1::2], strict=True))
        turn, accepted = decode_turn(record), record.get(b"accepted", b"").decode()
        return Claim(turn, link, token, taken_at, turn.deadline_at - now, accepted)

    def beat(self, claim: Claim) -> str:
        """Keep the lease; returns why the turn is called off, or an empty text.

        Raises:
            Fenced: the turn is no longer ours.
        """
        said, stop = self._call("beat", *_ids(claim), claim.token, self._lease_ms)
        if said != b"held":
            raise Fenced
        return str(stop.decode())

    def confirm(self, claim: Claim) -> float:
        """Make sure that the turn is still ours, and keep its lease; waits while the store is away.

        Returns when the store was asked, by ``time.monotonic()``.

        Raises:
            Fenced: the turn is no longer ours.
        """

        def ask() -> float:
            asked_at = time.monotonic()
            self.beat(claim)
            return asked_at

        return float(patiently(ask))

    def append(self, claim: Claim, events: list[EventData]) -> None:
        """Add events to the turn's log, in order, each exactly once; waits while the store is away.

        Earlier ones that the store has forgotten are added again before. Not for two threads with one claim.

        Raises:
            Fenced: the turn is no longer ours.
        """
        self._tell("append", claim, [], events)

    def seal(self, claim: Claim, accepted: str) -> bool:
        """Accept an answer, which is published next; False when the turn was called off before.

        From then on the turn can only end with ``accepted``, whoever holds it. Waits while the store is away.

        Raises:
            Fenced: the turn is no longer ours; nothing may be published.
        """
        [said] = patiently(lambda: self._call("seal", *_ids(claim), claim.token, accepted))
        if said == b"fenced":
            raise Fenced
        return bool(said == b"sealed")

    def commit(self, claim: Claim, move: Move) -> Committed:
        """Write what was decided and give the lease back; waits while the store is away.

        Raises:
            Fenced: the turn is no longer ours; nothing was written.
        """
        head, outcome = self._tell("commit", claim, [move.to_json()], move.events)
        return Committed(head.decode(), outcome.decode())

    def _tell(self, command: str, claim: Claim, more: list[str], events: list[EventData]) -> list[Any]:
        """Send a numbered command, and again what the store has forgotten of those before it. Raises as both."""
        number = claim.told.add(events)
        said, *reply = self._send(command, claim, number, [*more, *_flat(events)])
        while said == b"behind":
            known = int(reply[0])
            log.error("store.forgot", turn_id=claim.turn.turn_id, commands=number - 1 - known, hint=_FORGOT)
            for earlier, forgotten in claim.told.between(known, number):
                self._send("append", claim, earlier, _flat(forgotten))
            said, *reply = self._send(command, claim, number, [*more, *_flat(events)])
        return reply

    def _send(self, command: str, claim: Claim, number: int, args: list[str]) -> list[Any]:
        reply: list[Any] = patiently(lambda: self._call(command, *_ids(claim), claim.token, number, *args))
        if reply[0] == b"fenced":
            raise Fenced
        return reply

    def due(self, shard: int, limit: int = 100) -> list[str]:
        """Ids of turns that somebody must look at now, the longest waiting first."""
        seconds, micros = self._redis.time()
        now = seconds * 1000 + micros // 1000
        key = Keys(self.settings.namespace, shard).due
        found: list[Any] = self._redis.zrangebyscore(key, "-inf", now, 0, limit)
        return [turn_id.decode() for turn_id in found]

    def recall(self, shard: int) -> None:
        """Have every unfinished turn of a shard looked at now: the clock was set back, and all times seem far away."""
        key = Keys(self.settings.namespace, shard).due
        ids: list[Any] = self._redis.zrange(key, 0, -1)
        now = int(self.server_time() * 1000)
        if ids:
            self._redis.zadd(key, {turn_id.decode(): now for turn_id in ids}, xx=True, lt=True)

    def put_aside(self, turn_id: str, error: ResponseError | ValueError) -> None:
        """Put a turn aside for a while whose record is damaged, so that it holds up no other turn.

        Raises:
            ResponseError: the store takes no writes at all: that is no fault of the turn.
        """
        if isinstance(error, _REFUSALS) or str(error).startswith("MISCONF"):
            raise error
        log.error("turn.damaged", turn_id=turn_id, error=str(error)[:200])
        self.put_off(turn_id, _DAMAGED_SECONDS)

    def put_off(self, turn_id: str, seconds: float) -> None:
        """Have a turn looked at later, if it is to be looked at at all; its record is not touched."""
        at = int((self.server_time() + seconds) * 1000)
        self._redis.zadd(keys_of(self.settings.namespace, turn_id).due, {turn_id: at}, xx=True)

    def reap(self, turn_id: str, *, may_take: bool) -> Reaped:
        """Look at one due turn; ``may_take`` allows taking it from a worker whose lease ran out."""
        keys = keys_of(self.settings.namespace, turn_id)
        session: Any = self._redis.hget(keys.turn(turn_id), "session_id")
        session_id = session.decode() if session else ""
        args = (int(may_take), self._lease_ms, self.settings.strikes)
        reply = self._call("reap", turn_id, session_id, *args)
        return Reaped(*(part.decode() for part in reply))

    def cancel(self, turn_id: str, session_id: str) -> None:
        """Call a turn off, because a later one of its session is to interrupt it."""
        self._call("cancel", turn_id, session_id, "", "cancelled")

    def answer_probe(self, queue: str, nonce: str) -> None:
        """Write down that this worker claimed a probe."""
        key = Keys(self.settings.namespace).probe(nonce)
        self._redis.hsetnx(key, queue, self.worker)
        self._redis.expire(key, 60)

    def turn(self, turn_id: str) -> Turn | None:
        """A turn's record; None when there is none. Waits while the store is away."""
        key = keys_of(self.settings.namespace, turn_id).turn(turn_id)
        stored = patiently(lambda: self._redis.hgetall(key))
        return decode_turn(stored) if stored else None

    def next_link(self, turn_id: str) -> Link | None:
        """The link that comes next for a turn, such as the one that leads its session now; None when there is none."""
        try:
            link: Any = self._redis.hget(keys_of(self.settings.namespace, turn_id).turn(turn_id), "next")
        except RedisError:
            return None  # not vital: a reaper announces it
        return Link.parse(link.decode()) if link else None

    def knows(self, turn_id: str) -> bool:
        """Whether the store has this turn's record."""
        return bool(patiently(lambda: self._redis.exists(keys_of(self.settings.namespace, turn_id).turn(turn_id))))

    def attempts(self, turn_id: str) -> list[AttemptRecord]:
        """The turn's attempts, oldest first."""
        key = keys_of(self.settings.namespace, turn_id).attempts(turn_id)
        return decode_attempts(patiently(lambda: self._redis.hgetall(key)))

    def server_time(self) -> float:
        """The store's clock, in seconds since the epoch."""
        seconds, micros = self._redis.time()
        return float(seconds + micros / 1e6)


def _ids(claim: Claim) -> tuple[str, str]:
    return claim.turn.turn_id, claim.turn.request.session_id


def _flat(events: list[EventData]) -> list[str]:
    return [part for kind, data in events for part in (kind, json.dumps(data))]
