"""A claim of a turn, and what the ledger's commands answer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from api_client.contract.attempt_record import AttemptRecord
from api_client.contract.tasks import Link
from api_client.contract.turn import Turn
from api_client.turns.record.moves import Move
from api_client.turns.record.store_command import Command


class LeaseLost(Exception):
    """Another worker has the turn, or it has ended. Whatever the holder of this claim did must not count."""


class JudgingHeldBack(Exception):
    """No answers are judged now: a run is stored, and its answer waits. Nothing was written."""


@dataclass(slots=True)
class Claim:
    """A turn held for one link of its chain.

    Attributes:
        token: the fencing token: the store refuses writes with the token of an earlier claim.
        taken_at: when the claim was asked for, by ``time.monotonic()``.
        seconds_left: time to the turn's deadline at that moment, by the store's clock.
        accepted: what an earlier holder accepted and did not commit (``accepted.py``), or empty.
        attempts: the stored facts of each attempt, by its number, as far as the holder has read or written it; None:
            not read yet.
        records: those attempts as they are read, by number, as far as somebody asked.
        left_behind: facts such as ``2:text~TOKEN`` that an earlier holder wrote and did not come to name: the next
            commit removes them.
        outbox: the commands the holder sent, those of links before this one too, numbered 1, 2, 3, ...: each is sent
            again with its number. Emptied when the turn is given back: each knows its claim, and the claim them.
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
        """Return the stored facts of an attempt, as far as known: texts by name."""
        return (self.attempts or {}).get(attempt, {})

    def records_after(self, move: Move) -> dict[int, AttemptRecord]:
        """``records`` after a move of the holder: what it wrote of a new attempt is not read again from its texts."""
        records = {number: record for number, record in self.records.items() if number != move.attempt}
        if move.attempt not in (self.attempts or {}):
            records[move.attempt] = AttemptRecord(number=move.attempt, **move.facts.values)
        return records


@dataclass(frozen=True, slots=True)
class Refusal:
    """The turn was not there to be taken; ``why`` is one word for the log.

    ``worker``: where it is ``kept``, the worker process with an affinity to its session, which is to take it.
    """

    why: str
    worker: str = ""


@dataclass(frozen=True, slots=True)
class CommitResult:
    """The result of a commit: ``head`` is the session's next turn or empty, ``outcome`` is set when the turn ended."""

    head: str
    outcome: str


@dataclass(frozen=True, slots=True)
class Behind:
    """The store forgot answered commands of this claim; ``known`` is the number of the last one it has."""

    known: int


@dataclass(frozen=True, slots=True)
class HeldBack:
    """The reply of a command that is held back, see ``JudgingHeldBack``."""


@dataclass(frozen=True, slots=True)
class ReapResult:
    """A reaper's findings and actions: see ``reap.lua``."""

    what: str
    link: str
    session_id: str
    head: str
    outcome: str
