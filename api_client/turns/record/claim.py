"""A worker's claim of a turn, and the results of the ledger's commands."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from api_client.contract.attempt_record import AttemptRecord
from api_client.contract.tasks import Link
from api_client.contract.turn import Turn
from api_client.turns.record.moves import Move
from api_client.turns.record.store_command import Command


class LeaseLost(Exception):
    """Another worker holds the turn, or the turn has ended; later results of this claim must not count."""


class JudgingHeldBack(Exception):
    """No answers are validated now: the run is stored, its answer waits, and nothing was written."""


@dataclass(slots=True)
class Claim:
    """A turn held for one task of its chain.

    Attributes:
        turn: the turn's record.
        link: the task.
        token: the fencing token; the store refuses writes with the token of an earlier claim.
        taken_at: the time of the claim, a ``time.monotonic()`` value.
        seconds_left: the time to the deadline at that moment, by the store's clock.
        accepted: an answer accepted but not committed by an earlier holder (``accepted.py``), or empty.
        attempts: the stored facts of each attempt by its number, as known to the holder; None before reading.
        records: the attempts parsed so far, by number.
        left_behind: facts without a transition, such as ``2:text~TOKEN``; the next commit removes them.
        outbox: the holder's numbered commands, kept for resending; emptied when the turn is given back.
    """

    turn: Turn
    link: Link
    token: str
    taken_at: float
    seconds_left: float
    accepted: str = ""
    attempts: dict[int, dict[str, str]] | None = None
    records: dict[int, AttemptRecord] = field(default_factory=dict)
    left_behind: list[str] = field(default_factory=list)
    outbox: list[Command[Any]] = field(default_factory=list)

    def facts(self, attempt: int) -> dict[str, str]:
        """Return the known stored facts of an attempt, texts by name."""
        return (self.attempts or {}).get(attempt, {})

    def records_after(self, move: Move) -> dict[int, AttemptRecord]:
        """Return ``records`` after a transition, with the attempt that the transition added."""
        records = {number: record for number, record in self.records.items() if number != move.attempt}
        if move.attempt not in (self.attempts or {}):
            records[move.attempt] = AttemptRecord(number=move.attempt, **move.facts.values)
        return records


@dataclass(frozen=True, slots=True)
class Refusal:
    """A refused claim.

    Attributes:
        why: the reason, as one word for the log.
        worker: for the reason ``kept``, the worker that keeps the session's agent.
    """

    why: str
    worker: str = ""


@dataclass(frozen=True, slots=True)
class CommitResult:
    """The result of a commit: the session's next turn ``head`` and the turn's ``outcome``, both possibly empty."""

    head: str
    outcome: str


@dataclass(frozen=True, slots=True)
class Behind:
    """The store lost answered commands of this claim; ``known`` is the number of the last command it has."""

    known: int


@dataclass(frozen=True, slots=True)
class HeldBack:
    """The reply of a command that is held back, see ``JudgingHeldBack``."""


@dataclass(frozen=True, slots=True)
class ReapResult:
    """What a reaper found and did with a due turn, see ``reap.lua``."""

    what: str
    link: str
    session_id: str
    head: str
    outcome: str
