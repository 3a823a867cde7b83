"""A move: one change of a turn by its holder. The ``after_*`` modules say which move follows from what."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from api_client.contract.event_kinds import Body, TurnRetrying
from api_client.contract.tasks import PHASE_RUN, RETRY, Link
from api_client.contract.turn import AttemptRecord, Outcome, Turn, TurnState
from worker.enforcement.documents.step import marker_spans
from worker.enforcement.issue import ValidationIssue
from worker.enforcement.policy import Attempt, Policy, Retry
from worker.runners.base import Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a finished turn answers. ``error`` has code, message (for the user) and issues; empty on success."""

    response: str = ""
    step: str = ""
    step_source: str = ""
    error: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """One change of a turn by its holder: what is written, told and counted, and what comes next.

    Attributes:
        state, next: where the turn goes; ignored when ``outcome`` is set.
        fields: facts of the turn. facts: facts of attempt ``attempt``. Texts to texts.
        events: in order; the end of a turn is told by the store itself.
        delay_ms: time before ``next`` may be claimed.
        counters: see ``contract/counters.py``; the store adds what it measures.
        outcome, answer: set when this is the end.
        end_counters: counted only if the turn really ends so, and was not called off in the same moment.
        run_ended: an agent run ended with this. judged: an answer was judged.
        park_seconds: above 0, the turn waits so long in the inbox for a decision; ``state`` is parked then.
    """

    attempt: int
    state: TurnState = TurnState.RAN
    next: Link | None = None
    fields: dict[str, str] = field(default_factory=dict)
    facts: dict[str, str] = field(default_factory=dict)
    events: list[Body] = field(default_factory=list)
    counters: dict[str, int] = field(default_factory=dict)
    delay_ms: int = 0
    outcome: Outcome | None = None
    answer: Answer = field(default_factory=Answer)
    end_counters: dict[str, int] = field(default_factory=dict)
    run_ended: bool = False
    judged: bool = False
    park_seconds: float = 0.0

    def to_json(self) -> str:
        """The move as ``commit.lua`` reads it."""
        answer = self.answer
        return json.dumps(
            {
                "state": self.state.value,
                "next": str(self.next or ""),
                "fields": self.fields,
                "attempt": str(self.attempt),
                "facts": self.facts,
                "counters": self.counters,
                "delay_ms": self.delay_ms,
                "outcome": self.outcome.value if self.outcome else "",
                "answer": {
                    "response": answer.response,
                    "step": answer.step,
                    "step_source": answer.step_source,
                    "error": json.dumps(answer.error),
                },
                "markers": json.dumps(marker_spans(answer.response) if answer.step else ()),
                "end_counters": self.end_counters,
                "run_ended": self.run_ended,
                "judged": self.judged,
                "park_ms": int(self.park_seconds * 1000),
            }
        )


def read_move(text: str, events: list[Body]) -> Move:
    """An ending move again, from ``to_json`` and its events.

    Raises:
        ValueError: it is no move that ends a turn.
    """
    data = json.loads(text)
    plain = {name: data[name] for name in Move.__dataclass_fields__ if name in data}
    read = {
        "attempt": int(data["attempt"]),
        "state": TurnState(data["state"]),
        "next": Link.parse(data["next"]) if data["next"] else None,
        "events": events,
        "outcome": Outcome(data["outcome"]),
        "answer": Answer(**{**data["answer"], "error": json.loads(data["answer"]["error"])}),
    }
    return Move(**(plain | read))


def policy_of(turn: Turn) -> Policy:
    """The policy a turn was submitted with; an escalation or a person may have allowed more attempts."""
    request = turn.request
    return Policy(
        max_attempts=turn.allowed or request.max_attempts,
        locale=request.locale,
        order=request.policy,
        go_on=request.phase is None,  # a phase's result is its files
    )


def again(turn: Turn, attempt: int) -> Link:
    """The link that runs the turn's agent once more."""
    return Link(RETRY if turn.request.phase is None else PHASE_RUN, attempt)


def judged(records: Sequence[AttemptRecord]) -> list[Attempt]:
    """A turn's stored attempts as the policy sees them."""
    return [_judged(record, asked_anew(records[:at])) for at, record in enumerate(records)]


def asked_anew(before: Sequence[AttemptRecord]) -> bool:
    """True when the attempt after these was asked by a person, or of another model, not by the policy's feedback."""
    return bool(before) and before[-1].decision == "escalate"


def _judged(record: AttemptRecord, fresh: bool) -> Attempt:
    return Attempt(
        number=record.number,
        text=record.text,
        answer=record.answer,
        complete=record.completion.get("verdict") == Verdict.COMPLETE.value,
        issues=tuple(ValidationIssue.from_dict(issue) for issue in record.issues),
        fresh=fresh,
    )


def retrying(
    turn: Turn, attempt: int, reason: str, *, codes: Iterable[str] = (), feedback: str = "", goes_on: bool = False
) -> TurnRetrying:
    """The event that says that the agent is asked again."""
    return TurnRetrying(
        attempt=attempt,
        max_attempts=turn.allowed or turn.request.max_attempts,
        reason=reason,
        codes=tuple(codes),
        feedback=feedback,
        goes_on=goes_on,
        delay_seconds=0,
    )


def asked_for(turn: Turn, link: Link, reason: str, decision: Retry) -> TurnRetrying:
    """The event that says that the policy asks the agent again."""
    return retrying(
        turn,
        link.attempt + 1,
        reason,
        codes=decision.codes,
        feedback=decision.feedback,
        goes_on=decision.goes_on,
    )
