"""A worker's claim of a turn, and the results of commands about turns."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from api_client.contract.attempt_record import AttemptRecord
from api_client.contract.tasks import ChainTask
from api_client.contract.turn import Turn
from api_client.turns.record.store_command import Command
from api_client.turns.record.transition import Transition


class LeaseLost(Exception):
    """Raised when this worker no longer holds the turn, so that its later results must not count."""


class ValidationHeldBack(Exception):
    """Raised when validation is paused. Nothing was written, and the agent's answer stays in the store."""


@dataclass(slots=True)
class LeaseClaim:
    """A turn that a worker holds to carry out one of its tasks.

    ``token`` is the fencing token: the store refuses writes with the token of an earlier claim. ``taken_at`` is a
    ``time.monotonic()`` value, ``seconds_left`` the time to the deadline at that moment. ``accepted`` is an answer that
    an earlier holder sealed but did not commit. ``attempts`` has the stored facts of each attempt, None before reading.
    ``left_behind`` are facts that the next commit removes. ``outbox`` keeps numbered commands for resending.
    """

    turn: Turn
    chain_task: ChainTask
    token: str
    taken_at: float
    seconds_left: float
    accepted: str = ""
    attempts: dict[int, dict[str, str]] | None = None
    records: dict[int, AttemptRecord] = field(default_factory=dict)
    left_behind: list[str] = field(default_factory=list)
    outbox: list[Command[Any]] = field(default_factory=list)

    def known_facts(self, attempt: int) -> dict[str, str]:
        """Return an attempt's stored facts that the holder knows, as texts by name."""
        return (self.attempts or {}).get(attempt, {})

    def records_after(self, transition: Transition) -> dict[int, AttemptRecord]:
        """Return all attempts by number as they are after a transition."""
        records = {number: record for number, record in self.records.items() if number != transition.attempt}
        if transition.attempt not in (self.attempts or {}):
            records[transition.attempt] = AttemptRecord(number=transition.attempt, **transition.facts.values)
        return records


@dataclass(frozen=True, slots=True)
class ClaimRefusal:
    """The reason why a worker could not claim a turn, as one word for the log.

    ``worker`` keeps the session's agent if the reason is ``kept``.
    """

    why: str
    worker: str = ""


@dataclass(frozen=True, slots=True)
class CommitResult:
    """The result of storing a transition: the session's next turn and the turn's outcome, either possibly empty."""

    head: str
    outcome: str


@dataclass(frozen=True, slots=True)
class LostCommands:
    """The store's reply that earlier commands were lost. ``known`` is the number of the last stored command."""

    known: int


@dataclass(frozen=True, slots=True)
class HeldBack:
    """The store's reply that a command may not be carried out now (see ``ValidationHeldBack``)."""


@dataclass(frozen=True, slots=True)
class ReapResult:
    """The result of handling a due turn: its state, and the action taken."""

    what: str
    chain_task: str
    session_id: str
    head: str
    outcome: str
