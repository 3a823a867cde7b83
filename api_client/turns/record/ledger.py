"""Sends the commands of ``changes`` to the store for the coroutines of one event loop."""

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

from api_client.broker.celery_message import build_enqueue_arguments
from api_client.contract.keys import Keys, keys_for_turn, session_digest
from api_client.contract.settings import Settings
from api_client.contract.tasks import ChainTask, UnknownTask
from api_client.contract.worker_reports import WorkerReport, recent_reports, worker_name
from api_client.store.commands import REMOVE_OWN
from api_client.store.connection import Connection
from api_client.store.module_log import ModuleLog
from api_client.turns.record.changes import TurnCommands
from api_client.turns.record.claim import ClaimRefusal, CommitResult, LeaseClaim, LeaseLost, ReapResult
from api_client.turns.record.store_command import Command, Exchange, decode_hash, decode_text
from api_client.turns.record.transition import Transition

log = ModuleLog(__name__)

P = ParamSpec("P")
T = TypeVar("T")
Asked: TypeAlias = Coroutine[Any, Any, T]

#: Longest outage of the store that a holder waits for, in seconds.
_PATIENCE_SECONDS = 120.0
_PAUSE_SECONDS = 0.3
#: Errors of a store that is away, full or not the master, which may pass.
_PASSING = (RedisConnectionError, RedisTimeoutError, BusyLoadingError, OutOfMemoryError, ReadOnlyError)
#: Errors of a store that refuses all writes, so the turn is not at fault.
_REFUSALS = (OutOfMemoryError, ReadOnlyError)
#: Seconds before a turn left to other workers is announced again.
SOON_SECONDS = 0.5
#: Seconds before a turn with a damaged record is handled again.
_DAMAGED_SECONDS = 60.0


class Patience:
    """Decides for how long a safely repeatable command is retried after errors."""

    def __init__(self) -> None:
        self._until = time.monotonic() + _PATIENCE_SECONDS
        self._said = ""

    def next_delay(self, error: RedisError) -> float:
        """Return the seconds to wait before the next attempt. Raise ``error`` if a retry is pointless or too late."""
        # MISCONF: the disk is full, and the script was refused before its first write.
        full = isinstance(error, ResponseError) and str(error).startswith("MISCONF")
        if time.monotonic() > self._until or not (full or isinstance(error, _PASSING)):
            raise error
        said = str(error)[:80] if full else type(error).__name__
        if said != self._said:  # log each error only once
            self._said = said
            if full:
                log.warning("store.full", error=said)
            else:
                log.warning("store.away", error=said)
        return _PAUSE_SECONDS


def _send_once(make: Callable[Concatenate[TurnCommands, P], Command[T]]) -> Callable[Concatenate[Ledger, P], Asked[T]]:
    async def ask(self: Ledger, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._send_command(make(self._changes, *args, **kwargs))

    return ask


def _send_patiently(
    make: Callable[Concatenate[TurnCommands, P], Command[T] | Exchange[T]],
) -> Callable[Concatenate[Ledger, P], Asked[T]]:
    async def ask(self: Ledger, /, *args: P.args, **kwargs: P.kwargs) -> T:
        made = make(self._changes, *args, **kwargs)
        return await (self._send_command(made, patient=True) if isinstance(made, Command) else self._run_exchange(made))

    return ask


class Ledger:
    """Reads and changes turn records in the store on behalf of one worker.

    A holder's commands wait for an unavailable store as long as ``Patience`` allows, then raise ``RedisError``, or
    ``LeaseLost`` if this worker lost the turn. A reaper's commands (``list_due`` to ``server_time``) are sent once.
    """

    renew_lease = _send_once(TurnCommands.renew_lease)
    append_events = _send_patiently(TurnCommands.append_events)
    seal_answer = _send_patiently(TurnCommands.seal_answer)
    use_up = _send_patiently(TurnCommands.use_up)
    read_turn = _send_patiently(TurnCommands.read_turn)
    read_attempts = _send_patiently(TurnCommands.read_attempts)
    has_turn = _send_patiently(TurnCommands.has_turn)
    release_turns = _send_once(TurnCommands.release_turns)
    cancel_turn = _send_once(TurnCommands.cancel_turn)

    def __init__(self, settings: Settings, worker: str, connection: Connection | None = None) -> None:
        self.worker = worker
        self._settings, self._keys = settings, Keys(settings.namespace)
        self._connection = connection or Connection(settings)
        self._changes = TurnCommands(settings, worker)

    async def close(self) -> None:
        await self._connection.close()

    async def claim_turn(
        self,
        turn_id: str,
        session_id: str,
        chain_task: ChainTask,
        *,
        alone: bool = False,
        task: str = "",
        models: str = "",
        lack: str = "",
    ) -> LeaseClaim | ClaimRefusal:
        """Claim the turn for the task ``chain_task``, if the task is due and no worker holds the turn.

        A turn that killed workers before is refused unless this process is ``alone``, that is, works on nothing else.
        """
        token, taken_at = secrets.token_hex(12), time.monotonic()
        claiming = self._changes.claim_turn(
            turn_id, session_id, chain_task, token, taken_at, alone=alone, task=task, models=models, lack=lack
        )
        return await self._run_exchange(claiming)

    async def set_affinity(self, turn_id: str, session_id: str, seconds: float) -> None:
        """Record for ``seconds`` that this worker keeps the session's agent. Store errors are ignored."""
        with contextlib.suppress(RedisError):
            key, life = (
                keys_for_turn(self._settings.namespace, turn_id).affinity(session_id),
                max(1, int(seconds * 1000)),
            )
            await self._connection.send_command("SET", key, self.worker, "PX", life)

    async def find_affinity(self, session_id: str) -> str:
        """Return the name of the worker that keeps the session's agent, or an empty string."""
        found = await self._connection.send_command("GET", self._keys.affinity(session_id))
        return found.decode() if found else ""

    async def clear_affinity(self, session_id: str) -> None:
        await self._connection.send_command("EVAL", REMOVE_OWN, 1, self._keys.affinity(session_id), self.worker)

    async def list_other_workers(self) -> list[WorkerReport]:
        """Return the latest reports of other running workers' processes."""
        found = await self._send_command(Command(decode_hash, ("HGETALL", self._keys.workers)), patient=True)
        reports = recent_reports(WorkerReport.from_json(name.decode(), text) for name, text in found.items())
        return [each for each in reports if each.worker != worker_name(self.worker)]

    async def confirm_lease(self, claim: LeaseClaim) -> float:
        """Renew the lease of a claimed turn. Return the ``time.monotonic()`` value of the confirmed renewal."""
        patience: Patience | None = None
        while True:
            asked_at = time.monotonic()
            try:
                await self.renew_lease(claim)
                return asked_at
            except RedisError as error:
                patience = patience or Patience()
                await asyncio.sleep(patience.next_delay(error))

    async def find_snapshot(self, claim: LeaseClaim) -> str:
        """Return the name of the stored snapshot of the session's files, or an empty string."""
        request = claim.turn.request
        key = keys_for_turn(self._settings.namespace, claim.turn.turn_id).files
        return await self._send_command(
            Command(decode_text, ("HGET", key, session_digest(request.session_id))), patient=True
        )

    async def commit_transition(
        self, claim: LeaseClaim, transition: Transition, *, keep: bool = False, task: str = "", files: str = ""
    ) -> LeaseClaim | CommitResult:
        """Store a state transition (see ``TurnCommands.commit_transition``)."""
        return await self._run_exchange(
            self._changes.commit_transition(claim, transition, time.monotonic(), keep=keep, task=task, files=files)
        )

    async def next_task(self, turn_id: str) -> ChainTask | None:
        """Return a turn's next task, or None if no task is left, it is unknown here, or the store does not answer."""
        with contextlib.suppress(RedisError, UnknownTask):  # a reaper announces missed turns
            chain_task = await self._connection.send_command("HGET", self._record_key(turn_id), "next")
            return ChainTask.parse(chain_task.decode()) if chain_task else None
        return None

    async def read_stored_text(self, text_hash: str) -> str:
        """Return the policy or template stored under this hash, or an empty string."""
        return await self._send_command(Command(decode_text, ("HGET", self._keys.policies, text_hash)), patient=True)

    async def list_due(self, limit: int = 100) -> list[str]:
        """Return the ids of up to ``limit`` turns that are due, longest waiting first."""
        now = int(await self.server_time() * 1000)
        found = await self._connection.send_command("ZRANGEBYSCORE", self._keys.due, "-inf", now, "LIMIT", 0, limit)
        return [turn_id.decode() for turn_id in found]

    async def recall_turns(self) -> None:
        """Make every unfinished turn due now. This is necessary after the store's clock was set back."""
        if ids := await self._connection.send_command("ZRANGE", self._keys.due, 0, -1):
            now = int(await self.server_time() * 1000)
            words = [word for turn_id in ids for word in (now, turn_id)]
            await self._connection.send_command("ZADD", self._keys.due, "XX", "LT", *words)

    async def postpone_damaged_turn(self, turn_id: str, error: ResponseError | ValueError) -> None:
        """Postpone a turn with a damaged record, so that it does not block other turns.

        Raises ``ResponseError`` if the store refuses all writes, so that the turn is not at fault.
        """
        if isinstance(error, _REFUSALS) or str(error).startswith("MISCONF"):
            raise error
        log.error("turn.damaged", turn_id=turn_id, error=str(error)[:200])
        await self.postpone_turn(turn_id, _DAMAGED_SECONDS)

    async def refuse_unknown_task(self, turn_id: str, session_id: str, unknown: UnknownTask) -> bool:
        """Record that this worker does not know a turn's task. Return True if another worker may know the task."""
        log.error("turn.not_here", turn_id=turn_id, chain_task=str(unknown.chain_task), error=str(unknown))
        await self.claim_turn(turn_id, session_id, unknown.chain_task, lack=str(unknown))
        turn = await self.read_turn(turn_id)
        lacking = turn.lacks if turn else {}
        if others := [each for each in await self.list_other_workers() if each.worker not in lacking]:
            await self.postpone_turn(turn_id, SOON_SECONDS)
        return bool(others)

    async def postpone_turn(self, turn_id: str, seconds: float) -> None:
        """Postpone a due turn by ``seconds`` without changing its record."""
        at = int((await self.server_time() + seconds) * 1000)
        await self._connection.send_command(
            "ZADD", keys_for_turn(self._settings.namespace, turn_id).due, "XX", at, turn_id
        )

    async def reap_turn(self, turn_id: str, *, may_take: bool) -> ReapResult:
        """Handle a due turn and return the result. ``may_take`` allows taking over a turn with an expired lease."""
        session_id = decode_text(await self._connection.send_command("HGET", self._record_key(turn_id), "session_id"))
        return await self._send_command(self._changes.reap_turn(turn_id, session_id, may_take=may_take))

    async def queue_turn(self, turn_id: str, session_id: str, chain_task: ChainTask, since: float = 0.0) -> str:
        """Put a turn's first run into the fair queue, which alternates between owners."""
        values = build_enqueue_arguments(self._settings, chain_task, turn_id, session_id, since)
        return await self._send_command(self._changes.queue_turn(turn_id, session_id, values))

    async def find_ended(self, places: Sequence[str]) -> list[str]:
        """Return the given slots whose turns have ended or no longer exist."""
        names = [each.rpartition("|")[2] for each in places]
        keys = [keys_for_turn(self._settings.namespace, turn_id).turn(turn_id) for turn_id in names]
        states = await asyncio.gather(*(self._connection.send_command("HGET", key, "state") for key in keys))
        return [each for each, state in zip(places, states, strict=True) if state in {None, b"finished"}]

    async def fold_counters(self) -> None:
        """Add all pending counters to the stored totals."""
        while await self._run_exchange(self._changes.fold_counters(), patient=False):
            pass

    async def lost_task(self, turn_id: str) -> tuple[str, str]:
        """Return the Celery task and the worker that lost the turn, or two empty strings.

        Only the first caller receives the answer.
        """
        record = self._record_key(turn_id)
        found = await self._connection.send_command("HGET", record, "lost")
        if not found or not await self._connection.send_command("HDEL", record, "lost"):
            return "", ""
        task_id, _, worker = found.decode().partition(" ")
        return task_id, worker

    async def answer_probe(self, queue: str, nonce: str) -> None:
        """Record in the store that this worker received the probe message ``nonce`` from a queue."""
        key = self._keys.probe(nonce)
        await self._connection.send_command("HSETNX", key, queue, self.worker)
        await self._connection.send_command("EXPIRE", key, 60)

    async def server_time(self) -> float:
        """Return the store's time in seconds since the epoch."""
        seconds, micros = await self._connection.send_command("TIME")
        return int(seconds) + int(micros) / 1e6

    def _record_key(self, turn_id: str) -> str:
        return keys_for_turn(self._settings.namespace, turn_id).turn(turn_id)

    async def _send_command(self, command: Command[T], *, patient: bool = False) -> T:
        words = command.words
        if command.script:
            script = self._changes.scripts[command.script]
            words = ("EVALSHA", script.sha, len(command.keys), *command.keys, *words)
        patience: Patience | None = None
        while True:
            try:
                try:
                    return command.read(await self._connection.send_command(*words))
                except NoScriptError:
                    await self._connection.send_command("SCRIPT", "LOAD", script.text)
                    return command.read(await self._connection.send_command(*words))
            except RedisError as error:
                if not patient:
                    raise
                patience = patience or Patience()
                await asyncio.sleep(patience.next_delay(error))

    async def _run_exchange(self, exchange: Exchange[T], *, patient: bool = True) -> T:
        try:
            command = next(exchange)
            while True:
                try:
                    result = await self._send_command(command, patient=patient)
                except LeaseLost as error:
                    command = exchange.throw(error)
                else:
                    command = exchange.send(result)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
