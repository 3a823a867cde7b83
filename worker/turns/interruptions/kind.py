"""The worker's protocol for kinds of interruptions; the questions are in ``api_client/interruptions``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from api_client.contract.attempt_record import AttemptRecord
from api_client.contract.decision import TurnDecision
from api_client.contract.event_kinds import TurnSuspended
from api_client.contract.interruption import Interruption
from api_client.contract.issue import ValidationIssue
from api_client.contract.policy import PolicyFile
from api_client.contract.record import FieldChanges
from api_client.contract.settings import Settings
from api_client.contract.turn import Progress, Turn, TurnState
from api_client.turns.record.moves import Move, again, progress
from worker.runners.base import Order


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """The reasons why a turn is about to fail, for interruptions that ask a person instead.

    Attributes:
        best: the attempt whose answer counts if a person accepts it.
        reason: one word for the cause of the failure.
        issues: the errors of the best attempt.
        counters: counters that replace the transition's if the turn is handed on.
    """

    best: int
    reason: str
    issues: Sequence[ValidationIssue]
    counters: dict[str, int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunGround:
    """The functions and data that a kind of interruption may use to prepare an agent run.

    Attributes:
        policy: returns the turn's policy file. Raises ``ValueError`` if the file is unknown here.
        use_up: records that this run uses up the answer, and returns whether it may. Call from a thread.
        at_end: registers a function to call after the run.
    """

    turn: Turn
    settings: Settings
    policy: Callable[[], PolicyFile | None]
    use_up: Callable[[], bool]
    at_end: Callable[[Callable[[], object]], object]


class InterruptionKind:
    """Base class for reasons to suspend a turn until a person answers.

    By default the agent continues with any answer.

    All transitions are pure: they return a changed copy of the transition about to be stored.
    """

    name = ""

    def suspend(self, turn: Turn, move: Move, asked: Interruption) -> Move:
        """Return the transition that suspends the turn.

        If the question already has an answer, the transition queues the agent again at once.
        """
        fields = move.fields | progress(interruption=asked, answer_used="") | counted(turn, move, asked.kind, "asked")
        if asked.answer:
            return replace(move, state=TurnState.QUEUED, next=again(turn, move.attempt), fields=fields)
        waits = TurnSuspended(attempt=move.attempt, turn_id=turn.turn_id, reason=asked.reason, interruption=asked)
        return replace(
            move,
            state=TurnState.SUSPENDED,
            next=None,
            fields=fields,
            events=[*move.events, waits],
            suspend_seconds=asked.wait_seconds,
        )

    def resume(
        self, turn: Turn, asked: Interruption, decision: TurnDecision, number: int, best: AttemptRecord | None
    ) -> Move:
        """Return the transition that runs attempt ``number`` again with a person's decision.

        ``best`` is the attempt proposed to the person.
        """
        said = replace(asked, answer=decision.kind.value, note=decision.note, text=decision.text)
        goes_on = progress(interruption=said)
        return Move(attempt=number, state=TurnState.QUEUED, next=again(turn, number), fields=goes_on)

    def end(self, turn: Turn, move: Move, asked: Interruption, *, used: bool, whole: bool) -> Move:
        """Return the transition of a resumed run without the question, unless the same attempt continues.

        ``used`` says that the run used up the answer. Without a ``whole`` answer the agent session is dropped too.
        """
        if asks_anew(move) or goes_on(move):
            return move
        over = progress(interruption=None) | (progress() if whole else progress(agent_session=""))
        return replace(move, fields=move.fields | over)

    def rescue(self, turn: Turn, move: Move, failure: Failure) -> Move | None:
        """Return the transition that asks a person instead of failing the turn, or None to let the turn fail."""
        return None

    def adopts(self, turn: Turn, asked: Interruption) -> bool:
        """Return whether another worker may use the finished run of a worker that died."""
        return True

    def equip(self, order: Order, ground: RunGround) -> Order:
        """Return the agent's order with what this kind of interruption needs.

        Raises ``SettingsError`` or ``OSError``.
        """
        return order


def asks_anew(move: Move) -> bool:
    """Return whether the run of a transition ended with another question."""
    return bool(move.fields.values.get("interruption"))


def goes_on(move: Move) -> bool:
    """Return whether the transition runs the agent again for the same attempt."""
    return move.state is TurnState.QUEUED and move.next is not None and move.next.attempt == move.attempt


def counted(turn: Turn, move: Move, kind: str, name: str) -> FieldChanges[Progress]:
    """Return the turn's interruption counters after adding one to the counter ``name`` of this kind."""
    counts: Mapping[str, Any] = move.fields.values.get("interruptions", turn.interruptions)
    own = counts.get(kind, {})
    return progress(interruptions={**counts, kind: {**own, name: own.get(name, 0) + 1}})
