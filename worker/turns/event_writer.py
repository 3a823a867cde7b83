"""Writing an agent's events into its turn's log while it runs.

A delta goes out at once when no append is in flight; deltas that arrive meanwhile are joined. So a slow store costs
granularity, never text, and a fast agent cannot flood it. What still waits when the agent has ended is left to the
commit that reports the end of the run: one command less.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

import structlog
from redis.exceptions import RedisError

from api_client.contract.event_kinds import AttemptNote, AttemptOutput, AttemptReset, AttemptTool
from api_client.contract.events import Body
from api_client.contract.failpoints import arrive
from api_client.turns.record.claim import Claim, LeaseLost
from worker.runners.base import AgentEvent

log = structlog.get_logger()

#: At most this many characters of output are left to the commit, which has the whole answer to store.
_LEFT = 16_384
#: At most this many are appended at once: a longer text would hold the store up for everybody.
_MOST = 65_536


def _size(events: list[Body]) -> int:
    """Characters of output in these events."""
    return sum(len(body.text) for body in events if isinstance(body, AttemptOutput))


class Log(Protocol):
    """The place of new events: ``record.ledger.Ledger``, or a test's."""

    async def append(self, claim: Claim, events: list[Body]) -> None:
        """Add events to the turn's log. Raises ``LeaseLost``, ``RedisError``."""
        ...


class EventWriter:
    """Appends one run's events, in order, as the loop that made it turns."""

    def __init__(self, log_of_turn: Log, claim: Claim) -> None:
        self._log = log_of_turn
        self._claim = claim
        self._loop = asyncio.get_running_loop()
        self._waiting: list[Body] = []
        self._writing: asyncio.Task[None] | None = None
        self._beginning: asyncio.Handle | None = None
        self._fenced = self._closing = False
        self._fault: Exception | None = None

    def emit(self, event: AgentEvent) -> None:
        """Take an event, in the loop; never waits for the store."""
        if self._fenced:
            return
        attempt, text = self._claim.link.attempt, event.text
        match event.kind:
            case "output":
                for start in range(0, len(text) or 1, _MOST):
                    piece, last = text[start : start + _MOST], self._waiting[-1] if self._waiting else None
                    if isinstance(last, AttemptOutput) and len(last.text) + len(piece) <= _MOST:
                        piece = last.text + piece
                        self._waiting.pop()
                    self._waiting.append(AttemptOutput(attempt=attempt, text=piece))
            case "reset":
                self._waiting.append(AttemptReset(attempt=attempt, reason=text))
            case "tool":
                self._waiting.append(AttemptTool(attempt=attempt, name=text, detail=event.detail))
            case "note":
                self._waiting.append(AttemptNote(attempt=attempt, text=text))
        if self._writing is None and self._beginning is None:
            self._beginning = self._loop.call_soon(self._begin)

    def _begin(self) -> None:
        """Begin to append, unless that began already or nothing is left."""
        self._beginning = None
        if self._waiting and self._writing is None:
            self._writing = self._loop.create_task(self._write())

    async def close(self) -> list[Body]:
        """Wait until what was sent is in the log; the events that were not are the caller's, to send before any other.

        Raises what made a part of it impossible, but a lost turn or store.
        """
        if self._beginning:
            self._beginning.cancel()  # what the run said last is left to the commit
        self._closing = _size(self._waiting) <= _LEFT
        if not self._closing:
            self._begin()
        while self._writing:
            await self._writing
        if self._fault:
            raise self._fault
        left, self._waiting = self._waiting, []
        return left

    async def _write(self) -> None:
        try:
            while self._waiting and not self._closing:
                many = len(self._waiting)
                while many > 1 and _size(self._waiting[:many]) > _MOST:
                    many -= 1
                batch, self._waiting = self._waiting[:many], self._waiting[many:]
                await self._log.append(self._claim, batch)
                await arrive("output.received")
        except (LeaseLost, RedisError) as error:
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
