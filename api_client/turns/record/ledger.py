"""The ledger: sends the commands of ``changes`` over one connection, for the coroutines of one event loop."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Concatenate, ParamSpec, TypeAlias, TypeVar

from redis.exceptions import BusyLoadingError, NoScriptError, OutOfMemoryError, ReadOnlyError, RedisError, ResponseError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from api_client.broker import Stamp, announcement
from api_client.contract.keys import Keys, keys_of, session_digest
from api_client.contract.settings import Settings
from api_client.contract.tasks import Link
from api_client.contract.worker_reports import WorkerReport, there, worker_of
from api_client.store.commands import REMOVE_OWN
from api_client.store.connection import Connection
from api_client.store.module_log import ModuleLog
from api_client.turns.record.changes import Changes
from api_client.turns.record.claim import Claim, CommitResult, LeaseLost, ReapResult, Refusal
from api_client.turns.record.moves import Move
from api_client.turns.record.store_command import Command, Exchange, hash_of, text_of

log = ModuleLog(__name__)

P = ParamSpec("P")
T = TypeVar("T")
Asked: TypeAlias = Coroutine[Any, Any, T]

#: The store may be away so long before a holder gives up telling it how a run ended, in seconds.
_PATIENCE_SECONDS = 120.0
#: Between two tries, in seconds.
_PAUSE_SECONDS = 0.3
#: Errors of a store that is away, or full, or not the master: another time it works.
_PASSING = (RedisConnectionError, RedisTimeoutError, BusyLoadingError, OutOfMemoryError, ReadOnlyError)
#: Errors of a store that takes no writes at all; the turn is not at fault.
_REFUSALS = (OutOfMemoryError, ReadOnlyError)
#: Seconds until a turn with an unreadable record is looked at again.
_DAMAGED_SECONDS = 60.0


class Patience:
    """The repetition of one safe command until the store answers; the time counts from here."""

    def __init__(self) -> None:
        self._until = time.monotonic() + _PATIENCE_SECONDS
        self._said = ""

    def after(self, error: RedisError) -> float:
        """Return how long to wait before the next try, in seconds.

        Raises ``RedisError``: ``error`` itself: the store stayed away for two minutes, or refused for another reason.
        """
        # MISCONF: the disk is full, and the script was refused before its first write.
        full = isinstance(error, ResponseError) and str(error).startswith("MISCONF")
        if time.monotonic() > self._until or not (full or isinstance(error, _PASSING)):
            raise error
        said = str(error)[:80] if full else type(error).__name__
        if said != self._said:  # once, however often it is asked again
            self._said = said
            if full:
                log.warning("store.full", error=said)
            else:
                log.warning("store.away", error=said)
        return _PAUSE_SECONDS


def _once(make: Callable[Concatenate[Changes, P], Command[T]]) -> Callable[Concatenate[Ledger, P], Asked[T]]:
    async def ask(self: Ledger, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._do(make(self._changes, *args, **kwargs))

    return ask


def _patiently(
    make: Callable[Concatenate[Changes, P], Command[T] | Exchange[T]],
) -> Callable[Concatenate[Ledger, P], Asked[T]]:
    async def ask(self: Ledger, /, *args: P.args, **kwargs: P.kwargs) -> T:
        made = make(self._changes, *args, **kwargs)
        return await (self._do(made, patient=True) if isinstance(made, Command) else self._exchange(made))

    return ask


class Ledger:
    """The turn records in the store, as a worker reads and changes them. Belongs to one loop.

    What a holder asks waits while the store is away, as long as ``Patience`` allows, and raises
    ``redis.exceptions.RedisError`` then; with a claim also ``LeaseLost``: this worker lost the turn, and nothing
    was written. What a reaper asks (``due`` to ``server_time``) is asked once.
    """

    # The commands as ``Changes`` explains them.
    beat = _once(Changes.beat)
    append = _patiently(Changes.append)
    seal = _patiently(Changes.seal)
    use_up = _patiently(Changes.use_up)
    commit = _patiently(Changes.commit)
    turn = _patiently(Changes.turn)
    attempts = _patiently(Changes.attempts_of)
    knows = _patiently(Changes.knows)
    release = _once(Changes.release)
    cancel = _once(Changes.cancel)

    def __init__(self, settings: Settings, worker: str, connection: Connection | None = None) -> None:
        self.worker = worker
        self._settings, self._keys = settings, Keys(settings.namespace)
        self._connection = connection or Connection(settings)
        self._changes = Changes(settings, worker)

    async def close(self) -> None:
        """Close the connection."""
        await self._connection.close()

    async def claim(
        self,
        turn_id: str,
        session_id: str,
        link: Link,
        *,
        alone: bool = False,
        task: str = "",
        models: str = "",
        lack: str = "",
    ) -> Claim | Refusal:
        """Take the turn for ``link``, if that is its next link and no worker holds it.

        A turn one strike from a dead letter is refused as ``alone`` to each process that also does other work;
        ``models`` and ``lack`` as ``Changes.claim``.
        """
        token, taken_at = secrets.token_hex(12), time.monotonic()
        claiming = self._changes.claim(
            turn_id, session_id, link, token, taken_at, alone=alone, task=task, models=models, lack=lack
        )
        return await self._exchange(claiming)

    async def set_affinity(self, turn_id: str, session_id: str, seconds: float) -> None:
        """Note that this worker can best go on with a turn's session, for this long. Not vital."""
        with contextlib.suppress(RedisError):
            key, life = keys_of(self._settings.namespace, turn_id).affinity(session_id), max(1, int(seconds * 1000))
            await self._connection.ask("SET", key, self.worker, "PX", life)

    async def find_affinity(self, session_id: str) -> str:
        """Return which worker can best go on with a session, asking once; empty for none."""
        found = await self._connection.ask("GET", self._keys.affinity(session_id))
        return found.decode() if found else ""

    async def clear_affinity(self, session_id: str) -> None:
        """Remove this worker's affinity to a session, if it has one; asks once."""
        await self._connection.ask("EVAL", REMOVE_OWN, 1, self._keys.affinity(session_id), self.worker)

    async def others(self) -> list[WorkerReport]:
        """The processes of other workers that are there, as they last reported."""
        found = await self._do(Command(hash_of, ("HGETALL", self._keys.workers)), patient=True)
        reports = there(WorkerReport.from_json(name.decode(), text) for name, text in found.items())
        return [each for each in reports if each.worker != worker_of(self.worker)]

    async def confirm(self, claim: Claim) -> float:
        """Check that this worker still holds the turn, and renew its lease.

        Returns the time of the question, by ``time.monotonic()``.
        """
        patience: Patience | None = None
        while True:
            asked_at = time.monotonic()
            try:
                await self.beat(claim)
                return asked_at
            except RedisError as error:
                patience = patience or Patience()
                await asyncio.sleep(patience.after(error))

    async def files(self, claim: Claim) -> str:
        """Return where the claimed session's files are stored; empty for none."""
        request = claim.turn.request
        key = keys_of(self._settings.namespace, claim.turn.turn_id).files
        return await self._do(Command(text_of, ("HGET", key, session_digest(request.session_id))), patient=True)

    async def advance(self, claim: Claim, move: Move, task: str = "", files: str = "") -> Claim | CommitResult:
        """As ``commit``, and claim the next link under the same token; see ``Changes.advance``."""
        return await self._exchange(self._changes.advance(claim, move, time.monotonic(), task, files))

    async def next_link(self, turn_id: str) -> Link | None:
        """A turn's next link, for example of the turn now first in its session; None when it has none."""
        with contextlib.suppress(RedisError):  # not vital: a reaper announces it
            link = await self._connection.ask("HGET", self._record(turn_id), "next")
            return Link.parse(link.decode()) if link else None
        return None

    async def policy(self, policy_hash: str) -> str:
        """The text of a policy; empty when the store has none of this hash."""
        return await self._do(Command(text_of, ("HGET", self._keys.policies, policy_hash)), patient=True)

    async def due(self, limit: int = 100) -> list[str]:
        """Ids of the turns that are due now, the longest waiting first."""
        now = int(await self.server_time() * 1000)
        found = await self._connection.ask("ZRANGEBYSCORE", self._keys.due, "-inf", now, "LIMIT", 0, limit)
        return [turn_id.decode() for turn_id in found]

    async def recall(self) -> None:
        """Make every unfinished turn due now: the clock was set back, so all times seem far away."""
        if ids := await self._connection.ask("ZRANGE", self._keys.due, 0, -1):
            now = int(await self.server_time() * 1000)
            words = [word for turn_id in ids for word in (now, turn_id)]
            await self._connection.ask("ZADD", self._keys.due, "XX", "LT", *words)

    async def put_aside(self, turn_id: str, error: ResponseError | ValueError) -> None:
        """Put off a turn whose record is damaged, so that it does not hold up others.

        Raises ``ResponseError``: the store takes no writes at all; the turn is not at fault.
        """
        if isinstance(error, _REFUSALS) or str(error).startswith("MISCONF"):
            raise error
        log.error("turn.damaged", turn_id=turn_id, error=str(error)[:200])
        await self.put_off(turn_id, _DAMAGED_SECONDS)

    async def put_off(self, turn_id: str, seconds: float) -> None:
        """Make a turn due later, if it is due at all; its record does not change."""
        at = int((await self.server_time() + seconds) * 1000)
        await self._connection.ask("ZADD", keys_of(self._settings.namespace, turn_id).due, "XX", at, turn_id)

    async def reap(self, turn_id: str, *, may_take: bool) -> ReapResult:
        """Handle one due turn; ``may_take`` allows taking it from a worker whose lease ran out."""
        session_id = text_of(await self._connection.ask("HGET", self._record(turn_id), "session_id"))
        return await self._do(self._changes.reap(turn_id, session_id, may_take=may_take))

    async def line_up(self, turn_id: str, session_id: str, link: Link, since: float = 0.0) -> str:
        """Have a turn's first run start when its owner's turn has come; see ``Changes.line_up``."""
        pushed = ("", "", "")
        if self._settings.has_queues:
            made = announcement(self._settings, link, turn_id, session_id, Stamp())
            pushed = made.message, made.channel, made.event
        return await self._do(self._changes.line_up(turn_id, session_id, *pushed, since))

    async def ended(self, places: Sequence[str]) -> list[str]:
        """Those of ``ReleaseReply.places`` whose turns have ended, or are gone."""
        names = [each.rpartition("|")[2] for each in places]
        keys = [keys_of(self._settings.namespace, turn_id).turn(turn_id) for turn_id in names]
        states = await asyncio.gather(*(self._connection.ask("HGET", key, "state") for key in keys))
        return [each for each, state in zip(places, states, strict=True) if state in {None, b"finished"}]

    async def fold(self) -> None:
        """Add pending counters to the totals and buckets; see ``api_client.contract.counters``."""
        while await self._exchange(self._changes.fold(), patient=False):
            pass

    async def lost_task(self, turn_id: str) -> tuple[str, str]:
        """The Celery task of a turn that was taken from a dead worker, and that worker; empty for none.

        The first to ask gets the answer.
        """
        record = self._record(turn_id)
        found = await self._connection.ask("HGET", record, "lost")
        if not found or not await self._connection.ask("HDEL", record, "lost"):
            return "", ""
        task_id, _, worker = found.decode().partition(" ")
        return task_id, worker

    async def answer_probe(self, queue: str, nonce: str) -> None:
        """Record that this worker claimed a probe."""
        key = self._keys.probe(nonce)
        await self._connection.ask("HSETNX", key, queue, self.worker)
        await self._connection.ask("EXPIRE", key, 60)

    async def server_time(self) -> float:
        """The store's clock, in seconds since the epoch."""
        seconds, micros = await self._connection.ask("TIME")
        return int(seconds) + int(micros) / 1e6

    def _record(self, turn_id: str) -> str:
        return keys_of(self._settings.namespace, turn_id).turn(turn_id)

    async def _do(self, command: Command[T], *, patient: bool = False) -> T:
        """Send one command: until the store answers, or once."""
        words = command.words
        if command.script:
            script = self._changes.scripts[command.script]
            words = ("EVALSHA", script.sha, len(command.keys), *command.keys, *words)
        patience: Patience | None = None
        while True:
            try:
                try:
                    return command.read(await self._connection.ask(*words))
                except NoScriptError:
                    await self._connection.ask("SCRIPT", "LOAD", script.text)
                    return command.read(await self._connection.ask(*words))
            except RedisError as error:
                if not patient:
                    raise
                patience = patience or Patience()
                await asyncio.sleep(patience.after(error))

    async def _exchange(self, exchange: Exchange[T], *, patient: bool = True) -> T:
        """Send commands that follow from each other: each until the store answers, or once."""
        try:
            command = next(exchange)
            while True:
                try:
                    result = await self._do(command, patient=patient)
                except LeaseLost as error:
                    command = exchange.throw(error)
                else:
                    command = exchange.send(result)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
