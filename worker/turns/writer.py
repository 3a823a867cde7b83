"""Writing an agent's events into its turn's log while it runs.

A delta goes out at once when no append is in flight; deltas that arrive meanwhile are joined. So a
slow store costs granularity, never text, and a fast agent cannot flood it.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Protocol

import structlog
from redis.exceptions import RedisError

from api_client.contract.event_kinds import AttemptNote, AttemptOutput, AttemptReset, AttemptTool, Body
from api_client.contract.failpoints import arrive
from worker.runners.base import AgentEvent
from worker.turns.record.claim import Claim, Fenced

log = structlog.get_logger()


def told(event: AgentEvent, attempt: int) -> Body:
    """An agent's event as a turn's event."""
    match event.kind:
        case "output":
            return AttemptOutput(attempt=attempt, text=event.text)
        case "reset":
            return AttemptReset(attempt=attempt, reason=event.text)
        case "tool":
            return AttemptTool(attempt=attempt, name=event.text, detail=event.detail)
        case "note":
            return AttemptNote(attempt=attempt, text=event.text)


class Log(Protocol):
    """Where events are appended: ``record.async_ledger.AsyncLedger``, or a test's."""

    async def append(self, claim: Claim, events: list[Body]) -> None:
        """Add events to the turn's log. Raises ``Fenced``, ``RedisError``."""
        ...


class EventWriter:
    """Appends one run's events, in order, as the loop that made it turns. ``close`` waits for the log."""

    def __init__(self, log_of_turn: Log, claim: Claim) -> None:
        self._log = log_of_turn
        self._claim = claim
        self._loop = asyncio.get_running_loop()
        self._waiting: list[Body] = []
        self._writing: asyncio.Task[None] | None = None
        self._fenced = False
        self._fault: Exception | None = None

    def emit(self, event: AgentEvent) -> None:
        """Take an event, in the loop; never waits for the store."""
        if self._fenced:
            return
        body = told(event, self._claim.link.attempt)
        last = self._waiting[-1] if self._waiting else None
        if isinstance(body, AttemptOutput) and isinstance(last, AttemptOutput):
            self._waiting[-1] = replace(last, text=last.text + body.text)
        else:
            self._waiting.append(body)
        if self._writing is None:
            self._writing = self._loop.create_task(self._write())

    async def close(self) -> None:
        """Wait until everything is in the log. Raises what made a part of it impossible, but a lost turn or store."""
        while self._writing:
            await self._writing
        if self._fault:
            raise self._fault

    async def _write(self) -> None:
        try:
            while self._waiting:
                batch, self._waiting = self._waiting, []
                await self._log.append(self._claim, batch)
                await arrive("output.received")
        except (Fenced, RedisError) as error:
            # The turn is another's, or the store is gone for good: the commit will find the same and say so.
            log.warning("events.dropped", turn_id=self._claim.turn.turn_id, error=type(error).__name__)
            self._give_up()
        except Exception as fault:  # for who waits for the log: a run with half a log must not count
            self._fault = fault
            self._give_up()
        finally:
            self._writing = None

    def _give_up(self) -> None:
        self._fenced, self._waiting = True, []
