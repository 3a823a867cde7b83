"""Streams an agent's events to its turn's log during the run.

Only one append is in flight; further events are joined meanwhile.
"""

from __future__ import annotations

import asyncio

import structlog
from redis.exceptions import RedisError

from api_client.contract.event_kinds import AttemptNote, AttemptOutput, AttemptReset, AttemptTool
from api_client.contract.events import Body
from api_client.contract.failpoints import pass_failpoint_async
from api_client.turns.record.claim import LeaseClaim, LeaseLost
from api_client.turns.record.ledger import Ledger
from worker.runners.base import AgentEvent

log = structlog.get_logger()

#: Most characters of output that may be left to the commit, which stores the whole answer anyway.
_LEFT = 16_384
#: Most characters of output in one append, so that no command blocks the store for long.
_MOST = 65_536


def _count_characters(events: list[Body]) -> int:
    return sum(len(body.text) for body in events if isinstance(body, AttemptOutput))


class EventWriter:
    """Appends the events of one agent run to the turn's log, in order. Not thread-safe."""

    def __init__(self, ledger: Ledger, claim: LeaseClaim) -> None:
        self._ledger = ledger
        self._claim = claim
        self._loop = asyncio.get_running_loop()
        self._waiting: list[Body] = []
        self._writing: asyncio.Task[None] | None = None
        self._beginning: asyncio.Handle | None = None
        self._fenced = self._closing = False
        self._fault: Exception | None = None

    def queue_event(self, event: AgentEvent) -> None:
        """Queue an agent event for the log without waiting for the store. Must be called in the event loop."""
        if self._fenced:
            return
        attempt, text = self._claim.chain_task.attempt, event.text
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
                self._waiting.append(
                    AttemptTool(
                        attempt=attempt,
                        name=text,
                        detail=event.detail,
                        server=event.server,
                        result_bytes=event.result_bytes,
                    )
                )
            case "note":
                self._waiting.append(AttemptNote(attempt=attempt, text=text))
        if self._writing is None and self._beginning is None:
            self._beginning = self._loop.call_soon(self._start_append)

    def _start_append(self) -> None:
        self._beginning = None
        if self._waiting and self._writing is None:
            self._writing = self._loop.create_task(self._append_waiting())

    async def close(self) -> list[Body]:
        """Wait for the append in progress, and return the events that are not yet in the log.

        The caller must store the returned events before any other event. Raises unexpected errors of an append.
        """
        if self._beginning:
            self._beginning.cancel()  # the last output is left to the commit
        self._closing = _count_characters(self._waiting) <= _LEFT
        if not self._closing:
            self._start_append()
        while self._writing:
            await self._writing
        if self._fault:
            raise self._fault
        left, self._waiting = self._waiting, []
        return left

    async def _append_waiting(self) -> None:
        try:
            while self._waiting and not self._closing:
                many = len(self._waiting)
                while many > 1 and _count_characters(self._waiting[:many]) > _MOST:
                    many -= 1
                batch, self._waiting = self._waiting[:many], self._waiting[many:]
                await self._ledger.append_events(self._claim, batch)
                await pass_failpoint_async("output.received")
        except (LeaseLost, RedisError) as error:
            # The commit will meet the same error and report it.
            log.warning("events.dropped", turn_id=self._claim.turn.turn_id, error=type(error).__name__)
            self._drop_events()
        except Exception as fault:  # kept for close(): a run with an incomplete log must not count
            self._fault = fault
            self._drop_events()
        finally:
            self._writing = None

    def _drop_events(self) -> None:
        self._fenced, self._waiting = True, []
