"""A move: one change of a turn by its holder. The ``after_*`` modules say which move follows from what."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import field

from api_client.contract.attempt_record import AttemptFacts, AttemptRecord
from api_client.contract.completion import Verdict
from api_client.contract.decision import HANDED_ON
from api_client.contract.event_kinds import TurnRetrying
from api_client.contract.events import Body, data_of
from api_client.contract.frozen import frozen
from api_client.contract.marker import Span
from api_client.contract.record import FieldChanges, changes_of
from api_client.contract.tasks import Link
from api_client.contract.turn import Outcome, Progress, Turn, TurnState
from api_client.contract.turn_error import TurnError, error_data
from api_client.contract.work import find_work
from worker.enforcement.attempt import Attempt
from worker.enforcement.documents.step import marker_spans
from worker.enforcement.policy import Retry

#: Take the fields of a turn, and of an attempt, that a move changes: ``progress(retries=2)``.
progress = changes_of(Progress)
attempt_facts = changes_of(AttemptFacts)


@frozen(slots=True, kw_only=True)
class Answer:
    """The response of a finished turn: ``response``, or the ``error`` that says why there is none."""

    response: str = ""
    step: str = ""
    step_source: str = ""
    error: TurnError | None = None


@frozen(slots=True, kw_only=True)
class MoveTexts:
    """A move as it is stored.

    Attributes:
        fields, facts: of the turn and of the move's attempt, by name. events: kind, data (JSON) of each, in a row.
        spans: of the step markers that count in the answer. markers, error: these and the answer's error, as JSON.
    """

    fields: dict[str, str]
    facts: dict[str, str]
    events: list[str]
    spans: tuple[Span, ...]
    markers: str
    error: str


@frozen(slots=True, kw_only=True)
class Move:
    """One transition of a turn by its holder: its writes, events and counters, and the next link.

    Attributes:
        state, next: where the turn goes; ignored when ``outcome`` is set.
        fields: the turn's fields that change. facts: those of attempt ``attempt``. ``encoding.py`` makes texts of them.
        events: in order; the store itself adds the event of a turn's end.
        delay_ms: time before ``next`` may be claimed.
        counters: see ``contract/counters.py``; the store adds what it measures.
        outcome, answer: set when this is the end.
        end_counters: counted only if the turn really ends so, and was not cancelled in the same moment.
        run_ended: an agent run ended with this. judged: an answer was judged.
        judged_ms: how long judging took, in ms, where both are one move.
        service, service_reason: what the run reports about its service, as ``service_said`` names it, and why.
        service_wait_ms: how long the service asks us to wait.
        suspend_seconds: above 0, the turn waits so long for a decision; ``state`` is suspended then.
    """

    attempt: int
    state: TurnState = TurnState.RAN
    next: Link | None = None
    fields: FieldChanges[Progress] = field(default_factory=progress)
    facts: FieldChanges[AttemptFacts] = field(default_factory=attempt_facts)
    events: list[Body] = field(default_factory=list)
    counters: dict[str, int] = field(default_factory=dict)
    delay_ms: int = 0
    outcome: Outcome | None = None
    answer: Answer = field(default_factory=Answer)
    end_counters: dict[str, int] = field(default_factory=dict)
    run_ended: bool = False
    judged: bool = False
    judged_ms: int = 0
    suspend_seconds: float = 0.0
    service: str = ""
    service_reason: str = ""
    service_wait_ms: int = 0
    _texts: MoveTexts | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def texts(self) -> MoveTexts:
        """The move's texts: made once, because a move that is sealed is written twice."""
        texts = self._texts
        if texts is None:
            answer = self.answer
            spans = marker_spans(answer.response) if answer.step else ()
            texts = MoveTexts(
                fields=self.fields.to_texts(),
                facts=self.facts.to_texts(),
                events=flat(self.events),
                spans=spans,
                markers=json.dumps(spans) if spans else "[]",
                error=json.dumps(error_data(answer.error)) if answer.error else "{}",
            )
            object.__setattr__(self, "_texts", texts)
        return texts


def flat(events: Sequence[Body]) -> list[str]:
    """Events as arguments of a command: kind, data (JSON) of each."""
    return [part for body in events for part in (body.KIND, json.dumps(data_of(body)))]


def again(turn: Turn, attempt: int) -> Link:
    """The link that runs the turn's agent once more."""
    return Link(find_work(turn.request).again, attempt)


def judged(records: Sequence[AttemptRecord]) -> list[Attempt]:
    """A turn's stored attempts as the policy sees them."""
    return [
        Attempt(
            number=record.number,
            text=record.text,
            answer=record.answer,
            complete=record.completion.get("verdict") == Verdict.COMPLETE,
            issues=record.issues,
            fresh=asked_anew(records[:at]),
        )
        for at, record in enumerate(records)
    ]


def asked_anew(before: Sequence[AttemptRecord]) -> bool:
    """True when the attempt after these was asked by a person, or of another model, not by the policy's feedback."""
    return bool(before) and before[-1].decision == HANDED_ON


def retrying(
    turn: Turn, attempt: int, reason: str, *, codes: Iterable[str] = (), feedback: str = "", goes_on: bool = False
) -> TurnRetrying:
    """The event that says that the agent is asked again."""
    return TurnRetrying(
        attempt=attempt,
        max_attempts=turn.max_attempts,
        reason=reason,
        codes=tuple(codes),
        feedback=feedback,
        goes_on=goes_on,
        delay_seconds=0,
    )


def asked_for(turn: Turn, link: Link, reason: str, decision: Retry) -> TurnRetrying:
    """The event that says that the policy asks the agent again."""
    return retrying(
        turn, link.attempt + 1, reason, codes=decision.codes, feedback=decision.feedback, goes_on=decision.goes_on
    )
