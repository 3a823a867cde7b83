"""Transitions: the changes that the holder of a turn makes. The ``after_*`` modules compute them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import field

from api_client.contract.attempt_record import AttemptFacts, AttemptRecord
from api_client.contract.completion import Verdict
from api_client.contract.decision import HANDED_ON
from api_client.contract.event_kinds import TurnRetrying
from api_client.contract.events import Body, data_of
from api_client.contract.frozen import checked_frozen
from api_client.contract.record import FieldChanges, changes_factory
from api_client.contract.step_marker import Span
from api_client.contract.tasks import ChainTask
from api_client.contract.turn import Outcome, Progress, Turn, TurnState
from api_client.contract.turn_error import TurnError, error_to_dict
from api_client.contract.work import find_work
from worker.enforcement.attempt import Attempt
from worker.enforcement.documents.step import marker_spans
from worker.enforcement.policy import Retry

#: Select the fields of a turn, or of an attempt, that a transition changes: ``progress(retries=2)``.
progress = changes_factory(Progress)
attempt_facts = changes_factory(AttemptFacts)


@checked_frozen(slots=True, kw_only=True)
class Answer:
    """The response of a finished turn, or the error that explains why there is no response."""

    response: str = ""
    step: str = ""
    step_source: str = ""
    error: TurnError | None = None


@checked_frozen(slots=True, kw_only=True)
class TransitionTexts:
    """The texts of a state transition as stored.

    ``events`` has kind and data (JSON) of each event in a row; ``markers`` and ``error`` are JSON too.
    """

    fields: dict[str, str]
    facts: dict[str, str]
    events: list[str]
    spans: tuple[Span, ...]
    markers: str
    error: str


@checked_frozen(slots=True, kw_only=True)
class Transition:
    """A state transition of a turn: changed fields, new events, counters and the next task.

    ``state`` and ``next`` are ignored if ``outcome`` is set. ``delay_ms`` passes before ``next`` may be claimed.
    ``end_counters`` count only if the turn really ends with this outcome. ``validation_ms`` is the duration of a
    validation stored together with its run. ``suspend_seconds`` above 0 suspends the turn. ``service`` is what the run
    says about its model's service.
    """

    attempt: int
    state: TurnState = TurnState.RAN
    next: ChainTask | None = None
    fields: FieldChanges[Progress] = field(default_factory=progress)
    facts: FieldChanges[AttemptFacts] = field(default_factory=attempt_facts)
    events: list[Body] = field(default_factory=list)
    counters: dict[str, int] = field(default_factory=dict)
    delay_ms: int = 0
    outcome: Outcome | None = None
    answer: Answer = field(default_factory=Answer)
    end_counters: dict[str, int] = field(default_factory=dict)
    run_ended: bool = False
    validated: bool = False
    validation_ms: int = 0
    suspend_seconds: float = 0.0
    service: str = ""
    service_reason: str = ""
    service_wait_ms: int = 0
    _texts: TransitionTexts | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def texts(self) -> TransitionTexts:
        texts = self._texts
        if texts is None:
            answer = self.answer
            spans = marker_spans(answer.response) if answer.step else ()
            texts = TransitionTexts(
                fields=self.fields.to_texts(),
                facts=self.facts.to_texts(),
                events=flatten_events(self.events),
                spans=spans,
                markers=json.dumps(spans) if spans else "[]",
                error=json.dumps(error_to_dict(answer.error)) if answer.error else "{}",
            )
            object.__setattr__(self, "_texts", texts)
        return texts


def flatten_events(events: Sequence[Body]) -> list[str]:
    """Flatten events to Lua script arguments: each event's kind, and its data as JSON."""
    return [part for body in events for part in (body.KIND, json.dumps(data_of(body)))]


def rerun_task(turn: Turn, attempt: int) -> ChainTask:
    return ChainTask(find_work(turn.request).again, attempt)


def to_policy_attempts(records: Sequence[AttemptRecord]) -> list[Attempt]:
    """Convert stored attempts to the form that the retry policy expects."""
    return [
        Attempt(
            number=record.number,
            text=record.text,
            answer=record.answer,
            complete=record.completion.get("verdict") == Verdict.COMPLETE,
            issues=record.issues,
            fresh=is_fresh_attempt(records[:at]),
        )
        for at, record in enumerate(records)
    ]


def is_fresh_attempt(earlier: Sequence[AttemptRecord]) -> bool:
    """Return True if the attempt after the ``earlier`` ones was requested by a person or goes to another model."""
    return bool(earlier) and earlier[-1].decision == HANDED_ON


def retry_event(
    turn: Turn, attempt: int, reason: str, *, codes: Iterable[str] = (), feedback: str = "", goes_on: bool = False
) -> TurnRetrying:
    """Build the event that announces another run of the agent."""
    return TurnRetrying(
        attempt=attempt,
        max_attempts=turn.max_attempts,
        reason=reason,
        codes=tuple(codes),
        feedback=feedback,
        goes_on=goes_on,
        delay_seconds=0,
    )


def policy_retry_event(turn: Turn, chain_task: ChainTask, reason: str, decision: Retry) -> TurnRetrying:
    """Build the event that announces another agent run after the retry policy's decision."""
    return retry_event(
        turn, chain_task.attempt + 1, reason, codes=decision.codes, feedback=decision.feedback, goes_on=decision.goes_on
    )
