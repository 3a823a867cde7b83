"""The base class for kinds of interruptions: reasons to suspend a turn until a person answers a question.

``api_client/interruptions`` has the questions.
"""

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
from api_client.turns.record.transition import Transition, progress, rerun_task
from worker.runners.base import Order


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedTurn:
    """Describes a turn that is about to fail, so that an interruption can ask a person instead.

    ``best`` is the attempt whose answer counts if a person accepts it; ``counters`` replace those of the transition if
    another model or a person takes over.
    """

    best: int
    reason: str
    issues: Sequence[ValidationIssue]
    counters: dict[str, int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """The turn, the settings and the callbacks needed to prepare the agent run that resumes a suspended turn.

    Attributes:
        policy: returns the turn's policy file. Raises ``ValueError`` if the file is unknown here.
        use_up: records that this run uses the person's answer; returns False if it must not. Call from a thread.
        at_end: registers a function to call after the run.
    """

    turn: Turn
    settings: Settings
    policy: Callable[[], PolicyFile | None]
    use_up: Callable[[], bool]
    at_end: Callable[[Callable[[], object]], object]


class InterruptionKind:
    """Base class for reasons to suspend a turn until a person answers.

    By default the agent continues with any answer. Methods that return a transition change a copy of the transition
    about to be stored.
    """

    name = ""

    def suspend_turn(self, turn: Turn, transition: Transition, interruption: Interruption) -> Transition:
        """Return the transition that suspends the turn until a person answers, or reruns it if an answer is known."""
        fields = (
            transition.fields
            | progress(interruption=interruption, answer_used="")
            | count_interruption(turn, transition, interruption.kind, "asked")
        )
        if interruption.answer:
            return replace(transition, state=TurnState.QUEUED, next=rerun_task(turn, transition.attempt), fields=fields)
        waits = TurnSuspended(
            attempt=transition.attempt, turn_id=turn.turn_id, reason=interruption.reason, interruption=interruption
        )
        return replace(
            transition,
            state=TurnState.SUSPENDED,
            next=None,
            fields=fields,
            events=[*transition.events, waits],
            suspend_seconds=interruption.wait_seconds,
        )

    def resume_turn(
        self,
        turn: Turn,
        interruption: Interruption,
        decision: TurnDecision,
        attempt: int,
        shown_attempt: AttemptRecord | None,
    ) -> Transition:
        """Return the transition that reruns the agent for this attempt after a person's decision.

        ``shown_attempt`` is the attempt whose answer the person was shown.
        """
        said = replace(interruption, answer=decision.kind.value, note=decision.note, text=decision.text)
        goes_on = progress(interruption=said)
        return Transition(attempt=attempt, state=TurnState.QUEUED, next=rerun_task(turn, attempt), fields=goes_on)

    def end_run(
        self,
        turn: Turn,
        transition: Transition,
        interruption: Interruption,
        *,
        decision_used: bool,
        answer_complete: bool,
    ) -> Transition:
        """Return the transition that ends a resumed run and removes the answered question from the turn.

        A question stays if the run asks again or the same attempt continues. ``decision_used``: the run made use of
        the person's decision. Without an ``answer_complete`` from the agent, its session is dropped too.
        """
        if asks_again(transition) or continues_attempt(transition):
            return transition
        over = progress(interruption=None) | (progress() if answer_complete else progress(agent_session=""))
        return replace(transition, fields=transition.fields | over)

    def rescue_turn(self, turn: Turn, transition: Transition, failure: FailedTurn) -> Transition | None:
        """Return a transition that asks a person instead of failing the turn, or None if the turn should fail."""
        return None

    def may_adopt_run(self, turn: Turn, interruption: Interruption) -> bool:
        """Return True if another worker may take over the finished run of a worker that died."""
        return True

    def extend_order(self, order: Order, context: RunContext) -> Order:
        """Return the ``order`` that describes an agent run, extended if necessary, for example by tool rules."""
        return order


def asks_again(transition: Transition) -> bool:
    """Return True if the agent run that led to this transition ended with a question to a person."""
    return bool(transition.fields.values.get("interruption"))


def continues_attempt(transition: Transition) -> bool:
    """Return True if the transition reruns the agent for the same attempt."""
    return (
        transition.state is TurnState.QUEUED
        and transition.next is not None
        and transition.next.attempt == transition.attempt
    )


def count_interruption(turn: Turn, transition: Transition, kind: str, name: str) -> FieldChanges[Progress]:
    """Return the turn's interruption counters with the counter ``name`` of this kind incremented."""
    counts: Mapping[str, Any] = transition.fields.values.get("interruptions", turn.interruptions)
    own = counts.get(kind, {})
    return progress(interruptions={**counts, kind: {**own, name: own.get(name, 0) + 1}})
