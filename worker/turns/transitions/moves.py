"""A move: one change of a turn by its holder. The ``after_*`` modules say which move follows from what."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from api_client.contract.commands import Word
from api_client.contract.event_kinds import Body, TurnRetrying, data_of
from api_client.contract.marker import Span
from api_client.contract.tasks import PHASE_RUN, RETRY, Link
from api_client.contract.turn import AttemptRecord, Outcome, Turn, TurnState
from worker.enforcement.documents.step import marker_spans
from worker.enforcement.issue import ValidationIssue
from worker.enforcement.policy import Attempt, Policy, Retry
from worker.runners.base import Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a finished turn answers. ``error`` has code, message (for the user) and issues; empty on success.

    ``response_in`` stands for a long ``response``, with the ``markers`` that count in it: the fact that it is, such as
    ``2:text`` (``texts.py``).
    """

    response: str = ""
    response_in: str = ""
    markers: tuple[Span, ...] = ()
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
        service, service_reason: what the run reports about its service: ``answered``, ``failed`` and why.
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
    service: str = ""
    service_reason: str = ""

    def arguments(self) -> dict[str, Word]:
        """What ``commit.lua`` is called with, but for who commits; ``rest`` follows."""
        return {
            "next": str(self.next or ""),
            "state": self.state.value,
            "attempt": self.attempt,
            "delay_ms": self.delay_ms,
            "park_ms": int(self.park_seconds * 1000),
            "outcome": self.outcome.value if self.outcome else "",
            "told": self._told() if self.outcome else "",
            "counters": _lines(self.counters),
            "end_counters": _lines(self.end_counters),
            "run_ended": int(self.run_ended),
            "judged": int(self.judged),
            "service": self.service,
            "service_reason": self.service_reason,
            "n_fields": 2 * len(self.fields),
            "n_facts": 2 * len(self.facts),
            "n_answer": 2 * len(self._answer()),
        }

    def rest(self) -> list[str]:
        """The arguments without a name: fields, facts, the answer's fields, events."""
        pairs = [*self.fields.items(), *self.facts.items(), *self._answer().items()]
        return [text for pair in pairs for text in pair] + flat(self.events)

    def _answer(self) -> dict[str, str]:
        """The fields of a finished turn's record."""
        answer = self.answer
        if self.outcome is None:
            return {}
        return {
            "response": answer.response,
            **({"response_in": answer.response_in} if answer.response_in else {}),
            "step": answer.step,
            "step_source": answer.step_source,
            "error": json.dumps(answer.error),
            "markers": self._markers(),
        }

    def _markers(self) -> str:
        answer = self.answer
        spans = marker_spans(answer.response) if answer.step and not answer.response_in else answer.markers
        return json.dumps(spans)

    def _told(self) -> str:
        """The answer in the event of the end: the inside of a JSON object."""
        answer = self.answer
        texts = {"response": answer.response, "step": answer.step, "step_source": answer.step_source}
        if answer.response_in:
            texts["response_in"] = answer.response_in
        return json.dumps(texts)[1:-1] + f', "markers": {self._markers()}, "error": {json.dumps(answer.error)}'

    def to_dict(self) -> dict[str, Any]:
        """An ending move as ``Accepted`` keeps it, without its events."""
        return {
            "attempt": self.attempt,
            "fields": self.fields,
            "facts": self.facts,
            "counters": self.counters,
            "end_counters": self.end_counters,
            "outcome": self.outcome.value if self.outcome else "",
            "answer": asdict(self.answer),
            "run_ended": self.run_ended,
            "judged": self.judged,
        }


def read_move(data: dict[str, Any], events: list[Body]) -> Move:
    """An ending move again, from ``to_dict`` and its events; also as records of version 1 have it.

    Raises:
        ValueError: it is no move that ends a turn.
    """
    plain = {name: data[name] for name in ("fields", "facts", "counters", "end_counters", "run_ended", "judged")}
    answer = dict(data["answer"])
    if isinstance(answer["error"], str):
        answer["error"] = json.loads(answer["error"])
    answer["markers"] = tuple((start, end) for start, end in answer.get("markers", ()))
    return Move(
        attempt=int(data["attempt"]),
        events=events,
        outcome=Outcome(data["outcome"]),
        answer=Answer(**answer),
        **plain,
    )


def flat(events: Sequence[Body]) -> list[str]:
    """Events as arguments of a command: kind, data (JSON) of each."""
    return [part for body in events for part in (body.KIND, json.dumps(data_of(body)))]


def _lines(counters: dict[str, int]) -> str:
    """Counters as the commands take them: name, tab, number; one a line."""
    return "\n".join(f"{name}\t{by}" for name, by in counters.items())


def policy_of(turn: Turn) -> Policy:
    """The policy a turn was submitted with; an escalation or a person may have allowed more attempts."""
    request = turn.request
    applied = request.applied
    return Policy(
        max_attempts=turn.allowed or request.max_attempts,
        locale=request.locale,
        order=request.policy,
        go_on=request.phase is None,  # a phase's result is its files
        caps=applied.caps if applied else {},
        lenient=frozenset(applied.lenient) if applied else frozenset(),
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
