"""Writing an agent's events into its turn's log while it runs.

A delta goes out at once when no append is in flight; deltas that arrive meanwhile are joined. So a
slow store costs granularity, never text, and a fast agent cannot flood it.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Self

import structlog
from redis.exceptions import RedisError

from api_client.contract.event_kinds import AttemptNote, AttemptOutput, AttemptReset, AttemptTool, Body
from api_client.contract.failpoints import reach
from worker.runners.base import AgentEvent
from worker.turns.record.claim import Claim, Fenced
from worker.turns.record.ledger import Ledger

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


class EventWriter:
    """Appends one run's events, in order, from a thread of its own. As a context: leaving it waits for the log."""

    def __init__(self, ledger: Ledger, claim: Claim) -> None:
        self._ledger = ledger
        self._claim = claim
        self._waiting: list[Body] = []
        self._changed = threading.Condition()
        self._closing = False
        self._fenced = False
        self._fault: Exception | None = None
        self._thread = threading.Thread(target=self._write, name="events", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, _kind: object, raised: BaseException | None, _trace: object) -> None:
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()
        if self._fault and not raised:
            raise self._fault

    def emit(self, event: AgentEvent) -> None:
        """Take an event; never blocks on the store."""
        body = told(event, self._claim.link.attempt)
        with self._changed:
            if self._fenced:
                return
            last = self._waiting[-1] if self._waiting else None
            if isinstance(body, AttemptOutput) and isinstance(last, AttemptOutput):
                self._waiting[-1] = replace(last, text=last.text + body.text)
            else:
                self._waiting.append(body)
            self._changed.notify()

    def _write(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closing)
                batch, self._waiting = self._waiting, []
            if not batch:
                return
            try:
                self._ledger.append(self._claim, batch)
                reach("output.received")
            except (Fenced, RedisError) as error:
                # The turn is not ours, or the store is gone for good: the commit will find the same and say so.
                log.warning("events.dropped", turn_id=self._claim.turn.turn_id, error=type(error).__name__)
                self._give_up()
                return
            except Exception as fault:  # for the thread that waits for the log: a run with half a log must not count
                self._fault = fault
                self._give_up()
                return

    def _give_up(self) -> None:
        with self._changed:
            self._fenced, self._waiting = True, []
