"""The ledger: sends the commands of ``changes`` over blocking connections. Many threads may use it at once."""

from __future__ import annotations

import secrets
import time
from typing import Any, TypeVar

import redis
import structlog
from redis.exceptions import NoScriptError, OutOfMemoryError, ReadOnlyError, RedisError, ResponseError

from api_client.contract.event_kinds import Body
from api_client.contract.keys import Keys, keys_of
from api_client.contract.settings import Settings
from api_client.contract.tasks import Link
from api_client.contract.turn import Turn
from worker.turns.record.changes import Changes
from worker.turns.record.claim import Claim, Committed, Fenced, Reaped, Refusal
from worker.turns.record.command import Command, Exchange
from worker.turns.record.store import connect, patiently
from worker.turns.transitions.moves import Move

log = structlog.get_logger()

T = TypeVar("T")

#: Errors of a store that takes no writes at all; the turn is not at fault.
_REFUSALS = (OutOfMemoryError, ReadOnlyError)
#: Seconds until a turn with an unreadable record is looked at again.
_DAMAGED_SECONDS = 60.0


class Ledger:
    """The turn records in Redis, as one worker reads and changes them.

    Every method raises ``redis.exceptions.RedisError`` when the store stays away, unless its docstring says so.
    """

    def __init__(self, settings: Settings, worker: str, store: redis.Redis | None = None) -> None:
        self.settings = settings
        self.worker = worker
        self._redis = store or connect(settings)
        self._changes = Changes(settings, worker)

    def _do(self, command: Command[T]) -> T:
        """Send one command, once."""
        send: Any = self._redis.execute_command
        if not command.script:
            return command.read(send(*command.words))
        script = self._changes.scripts[command.script]
        try:
            reply = send(*command.sent(script.sha))
        except NoScriptError:
            self._redis.script_load(script.text)
            reply = send(*command.sent(script.sha))
        return command.read(reply)

    def _wait_for(self, command: Command[T]) -> T:
        """Send one command until the store answers."""
        result: T = patiently(lambda: self._do(command))
        return result

    def _exchange(self, exchange: Exchange[T], *, patient: bool = True) -> T:
        """Send commands, each made from the reply to the one before: until the store answers, or once."""
        send = self._wait_for if patient else self._do
        try:
            command = next(exchange)
            while True:
                try:
                    result = send(command)
                except Fenced as error:
                    command = exchange.throw(error)
                else:
                    command = exchange.send(result)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]

    def claim(
        self, turn_id: str, session_id: str, link: Link, *, alone: bool = False, task: str = ""
    ) -> Claim | Refusal:
        """Take the turn for ``link``, if that is its next link and no worker holds it.

        A turn one strike from a dead letter is refused as ``alone`` to each process that also does other work.
        """
        token, taken_at = secrets.token_hex(12), time.monotonic()
        return self._exchange(self._changes.claim(turn_id, session_id, link, token, taken_at, alone=alone, task=task))

    def beat(self, claim: Claim) -> str:
        """Renew the lease. Returns why the turn has to stop, or an empty text.

        Raises:
            Fenced: this worker no longer holds the turn.
        """
        return self._do(self._changes.beat(claim))

    def confirm(self, claim: Claim) -> float:
        """Check that this worker still holds the turn, and renew its lease; waits while the store is away.

        Returns the time of the question, by ``time.monotonic()``.

        Raises:
            Fenced: this worker no longer holds the turn.
        """

        def ask() -> float:
            asked_at = time.monotonic()
            self.beat(claim)
            return asked_at

        return float(patiently(ask))

    def append(self, claim: Claim, events: list[Body]) -> None:
        """Add events to the turn's log, in order, each exactly once; waits while the store is away.

        Earlier events that the store has forgotten are added again first. Not for two threads with one claim.

        Raises:
            Fenced: this worker no longer holds the turn.
        """
        self._exchange(self._changes.append(claim, events))

    def seal(self, claim: Claim, accepted: str) -> bool:
        """Accept an answer before it is published; False when the turn was stopped first.

        From then on the turn can only end with ``accepted``, under any holder. Waits while the store is away.

        Raises:
            Fenced: this worker no longer holds the turn; nothing may be published.
        """
        return self._wait_for(self._changes.seal(claim, accepted))

    def commit(self, claim: Claim, move: Move) -> Committed:
        """Store a move and give the lease back; waits while the store is away.

        Raises:
            Fenced: this worker no longer holds the turn; nothing was written.
        """
        return self._exchange(self._changes.commit(claim, move))

    def advance(self, claim: Claim, move: Move, task: str = "") -> Claim | Committed:
        """As ``commit``, and claim the next link under the same token; see ``Changes.advance``.

        Raises:
            Fenced: this worker no longer holds the turn; nothing was written.
        """
        return self._exchange(self._changes.advance(claim, move, time.monotonic(), task))

    def due(self, shard: int, limit: int = 100) -> list[str]:
        """Ids of the turns that are due now, the longest waiting first."""
        seconds, micros = self._redis.time()
        now = seconds * 1000 + micros // 1000
        key = Keys(self.settings.namespace, shard).due
        found: list[Any] = self._redis.zrangebyscore(key, "-inf", now, 0, limit)
        return [turn_id.decode() for turn_id in found]

    def recall(self, shard: int) -> None:
        """Make every unfinished turn of a shard due now: the clock was set back, so all times seem far away."""
        key = Keys(self.settings.namespace, shard).due
        ids: list[Any] = self._redis.zrange(key, 0, -1)
        now = int(self.server_time() * 1000)
        if ids:
            self._redis.zadd(key, {turn_id.decode(): now for turn_id in ids}, xx=True, lt=True)

    def put_aside(self, turn_id: str, error: ResponseError | ValueError) -> None:
        """Put off a turn whose record is damaged, so that it does not hold up others.

        Raises:
            ResponseError: the store takes no writes at all; the turn is not at fault.
        """
        if isinstance(error, _REFUSALS) or str(error).startswith("MISCONF"):
            raise error
        log.error("turn.damaged", turn_id=turn_id, error=str(error)[:200])
        self.put_off(turn_id, _DAMAGED_SECONDS)

    def put_off(self, turn_id: str, seconds: float) -> None:
        """Make a turn due later, if it is due at all; its record does not change."""
        at = int((self.server_time() + seconds) * 1000)
        self._redis.zadd(keys_of(self.settings.namespace, turn_id).due, {turn_id: at}, xx=True)

    def reap(self, turn_id: str, *, may_take: bool) -> Reaped:
        """Handle one due turn; ``may_take`` allows taking it from a worker whose lease ran out."""
        session_id = self._do(self._changes.session_of(turn_id))
        return self._do(self._changes.reap(turn_id, session_id, may_take=may_take))

    def fold(self, shard: int) -> None:
        """Add pending counters of a shard to its totals and buckets; see ``api_client.contract.counters``."""
        while self._exchange(self._changes.fold(shard), patient=False):
            pass

    def lost_task(self, turn_id: str) -> tuple[str, str]:
        """The Celery task of a turn that was taken from a dead worker, and that worker; empty for none.

        The first to ask gets the answer.
        """
        record = keys_of(self.settings.namespace, turn_id).turn(turn_id)
        pipe = self._redis.pipeline(transaction=True)
        pipe.hget(record, "lost")
        pipe.hdel(record, "lost")
        found, _ = pipe.execute()
        task_id, _, worker = (found or b"").decode().partition(" ")
        return task_id, worker

    def cancel(self, turn_id: str, session_id: str) -> None:
        """Cancel a turn, because a later one of its session interrupts it."""
        self._do(self._changes.cancel(turn_id, session_id))

    def answer_probe(self, queue: str, nonce: str) -> None:
        """Record that this worker claimed a probe."""
        key = Keys(self.settings.namespace).probe(nonce)
        self._redis.hsetnx(key, queue, self.worker)
        self._redis.expire(key, 60)

    def turn(self, turn_id: str) -> Turn | None:
        """A turn's record; None when there is none. Waits while the store is away."""
        return self._exchange(self._changes.turn(turn_id))

    def next_link(self, turn_id: str) -> Link | None:
        """A turn's next link, for example of the turn now first in its session; None when it has none."""
        try:
            return self._do(self._changes.next_link(turn_id))
        except RedisError:
            return None  # not vital: a reaper announces it

    def knows(self, turn_id: str) -> bool:
        """Whether the store has this turn's record."""
        return self._wait_for(self._changes.knows(turn_id))

    def server_time(self) -> float:
        """The store's clock, in seconds since the epoch."""
        seconds, micros = self._redis.time()
        return float(seconds + micros / 1e6)
