"""The ledger as the coroutines of one event loop use it: the same commands, over one connection."""

from __future__ import annotations

import asyncio
import secrets
import time
from typing import TypeVar

import structlog
from redis.exceptions import NoScriptError, RedisError

from api_client.connection import Connection
from api_client.contract.attempt import AttemptRecord
from api_client.contract.event_kinds import Body
from api_client.contract.settings import Settings
from api_client.contract.tasks import Link
from api_client.contract.turn import Turn
from api_client.contract.values.worker_reports import WorkerReport, there, worker_of
from worker.turns.record.changes import Changes
from worker.turns.record.claim import Claim, Committed, Fenced, Refusal
from worker.turns.record.command import Command, Exchange
from worker.turns.record.store import Patience
from worker.turns.transitions.moves import Move

log = structlog.get_logger()

T = TypeVar("T")


class AsyncLedger:
    """What ``Ledger`` does with the turns a worker holds. Belongs to one loop.

    Every method waits while the store is away, as long as ``Patience`` allows, and raises
    ``redis.exceptions.RedisError`` then.
    """

    def __init__(self, settings: Settings, worker: str) -> None:
        self.worker = worker
        self._connection = Connection(settings)
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
        """As ``Ledger.claim``; ``models`` and ``lack`` as ``Changes.claim``."""
        token, taken_at = secrets.token_hex(12), time.monotonic()
        claiming = self._changes.claim(
            turn_id, session_id, link, token, taken_at, alone=alone, task=task, models=models, lack=lack
        )
        return await self._exchange(claiming)

    async def others(self) -> list[WorkerReport]:
        """The processes of other workers that are there, as they last reported."""
        reports: list[WorkerReport] = await self._wait_for(self._changes.reports())
        return [each for each in there(reports) if each.worker != worker_of(self.worker)]

    async def append(self, claim: Claim, events: list[Body]) -> None:
        """As ``Ledger.append``; not for two tasks with one claim. Raises ``Fenced``."""
        await self._exchange(self._changes.append(claim, events))

    async def seal(self, claim: Claim, accepted: str) -> bool:
        """As ``Ledger.seal``. Raises ``Fenced``."""
        return await self._wait_for(self._changes.seal(claim, accepted))

    async def commit(self, claim: Claim, move: Move) -> Committed:
        """As ``Ledger.commit``. Raises ``Fenced``."""
        return await self._exchange(self._changes.commit(claim, move))

    async def advance(self, claim: Claim, move: Move, task: str = "") -> Claim | Committed:
        """As ``Ledger.advance``. Raises ``Fenced``."""
        return await self._exchange(self._changes.advance(claim, move, time.monotonic(), task))

    async def turn(self, turn_id: str) -> Turn | None:
        """A turn's record; None when the store has none."""
        return await self._exchange(self._changes.turn(turn_id))

    async def attempts(self, claim: Claim) -> list[AttemptRecord]:
        """The attempts of a claimed turn, oldest first."""
        return await self._exchange(self._changes.attempts_of(claim))

    async def next_link(self, turn_id: str) -> Link | None:
        """As ``Ledger.next_link``."""
        try:
            return await self._do(self._changes.next_link(turn_id))
        except RedisError:
            return None  # not vital: a reaper announces it

    async def policy(self, policy_hash: str) -> str:
        """The text of a policy; empty when the store has none of this hash."""
        return await self._wait_for(self._changes.policy(policy_hash))

    async def knows(self, turn_id: str) -> bool:
        """Whether the store has this turn's record."""
        return await self._wait_for(self._changes.knows(turn_id))

    async def _do(self, command: Command[T]) -> T:
        """Send one command, once."""
        if not command.script:
            return command.read(await self._connection.ask(*command.words))
        script = self._changes.scripts[command.script]
        words = command.sent(script.sha)
        try:
            reply = await self._connection.ask(*words)
        except NoScriptError:
            await self._connection.ask("SCRIPT", "LOAD", script.text)
            reply = await self._connection.ask(*words)
        return command.read(reply)

    async def _wait_for(self, command: Command[T]) -> T:
        """Send one command until the store answers."""
        patience: Patience | None = None
        while True:
            try:
                return await self._do(command)
            except RedisError as error:
                patience = patience or Patience()
                await asyncio.sleep(patience.after(error))

    async def _exchange(self, exchange: Exchange[T]) -> T:
        """Send commands that follow from each other, each until the store answers."""
        try:
            command = next(exchange)
            while True:
                try:
                    result = await self._wait_for(command)
                except Fenced as error:
                    command = exchange.throw(error)
                else:
                    command = exchange.send(result)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
