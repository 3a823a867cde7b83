"""Builds the trace spans of a finished turn, below the caller's span from the W3C header ``traceparent``."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from api_client.contract import event_kinds
from api_client.contract import events as kinds
from api_client.contract.events import Event
from api_client.contract.issue import ValidationIssue, error_codes
from api_client.contract.turn import Outcome, Turn
from api_client.contract.turn_labels import LABELS
from api_client.contract.work import find_work

#: Version 00 has exactly these fields; later versions may append more.
_HEADER = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-[\x21-\x7e]{0,200})?")
_SAMPLED = 1


class CallerSpan(NamedTuple):
    """The trace and the span in which the caller requested the turn."""

    trace_id: int
    span_id: int


def caller_span(traceparent: str) -> CallerSpan | None:
    """Parse a ``traceparent`` header. Return None if it is invalid or its trace is not recorded."""
    read = _HEADER.fullmatch(traceparent)
    if read is None:
        return None
    version, trace, span, flags, more = read.groups()
    found = CallerSpan(int(trace, 16), int(span, 16))
    fits = version != "ff" and not (version == "00" and more)
    return found if fits and all(found) and int(flags, 16) & _SAMPLED else None


def select_traceparent(given: Sequence[str]) -> str:
    """Return a request's ``traceparent`` header if exactly one valid header is given, or else an empty string."""
    return given[0] if len(given) == 1 and caller_span(given[0]) else ""


Value = str | int | float | bool | tuple[str, ...]

_NO_ERROR = frozenset({Outcome.CANCELLED})
#: Event fields copied to spans, without texts written by anybody.
_ATTRIBUTES = ("attempt", "delivery", "during", "silent_ms", "reason", "stage", "kind", "model", "delay_seconds")
#: Event kinds whose ``reason`` is ours; in others an agent may have written it.
_REASON_OF_OURS = (
    event_kinds.TurnRetrying,
    event_kinds.TurnEscalated,
    event_kinds.TurnSuspended,
    event_kinds.TurnStopping,
)
_MOST_NOTES = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanNote:
    """An event at one moment within a trace span."""

    name: str
    at: float
    attributes: Mapping[str, Value] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A trace span for a part of a turn. Times are in seconds since the epoch.

    ``key`` names the span within its turn, such as ``attempt 2``. ``parent`` is the key of the parent span, None for
    the turn's own span. ``error`` is the ``error.type``, from a closed set.
    """

    key: str
    name: str
    start: float
    end: float
    parent: str | None = None
    attributes: Mapping[str, Value] = field(default_factory=dict)
    error: str = ""
    notes: tuple[SpanNote, ...] = ()


def find_trace_id(turn: Turn) -> int:
    """Return the trace id of a turn: the caller's trace id if there is one, or else one derived from the turn."""
    caller = caller_span(turn.request.traceparent)
    return caller.trace_id if caller else int(turn.turn_id.partition("-")[2], 16)


def derive_span_id(turn: Turn, key: str) -> int:
    """Derive the id of a turn's span, always the same for the same turn and ``key``."""
    return int.from_bytes(hashlib.sha256(f"{turn.turn_id} {turn.epoch} {key}".encode()).digest()[:8], "big")


def build_spans(turn: Turn, events: Iterable[Event], providers: Mapping[str, str]) -> list[Span]:
    """Build the trace spans of a finished turn from its events, beginning with the span of the whole turn.

    ``providers`` maps models to ``gen_ai.provider.name``. A turn without a log (``turns data gc
    --events``) has only its own span.
    """
    walk = _LogWalk(turn, providers)
    for event in events:
        walk.read_event(event)
    return walk.build_spans()


@dataclass(slots=True)
class _AttemptTrace:
    """Collects the information about one attempt in a turn's events, to build the attempt's span."""

    number: int
    model: str
    start: float
    end: float
    deliveries: int = 0
    verdict: str = ""
    decision: str = ""
    codes: tuple[str, ...] = ()
    judged_since: float = 0.0
    used: dict[str, float] = field(default_factory=dict)
    notes: list[SpanNote] = field(default_factory=list)

    def add_usage(self, usage: Mapping[str, Any]) -> None:
        for name, amount in usage.items():
            if isinstance(amount, int | float):
                self.used[name] = self.used.get(name, 0) + amount


class _LogWalk:
    """Builds trace spans while reading a turn's events in order."""

    def __init__(self, turn: Turn, providers: Mapping[str, str]) -> None:
        self._turn, self._providers = turn, providers
        self._model = turn.request.model
        self._attempts: dict[int, _AttemptTrace] = {}
        self._checks: list[Span] = []
        self._notes: list[SpanNote] = []
        self._verifier = (0.0, "")
        self._mending = 0.0

    def read_event(self, event: Event) -> None:
        at = event.at
        match event.body:
            case (
                event_kinds.TurnQueued()
                | event_kinds.TurnFinished()
                | event_kinds.LogReset()
                | event_kinds.UnknownEvent()
            ):
                pass
            case event_kinds.AttemptStarted() as body:
                self._start_attempt(event, body)
            case event_kinds.TurnMended() as body:
                attributes: dict[str, Value] = {
                    "helix.changes": len(body.changes),
                    "helix.attempt.number": body.attempt,
                }
                span = Span(
                    key="fallback", name="fallback", start=self._mending or at, end=at, parent="", attributes=attributes
                )
                self._checks.append(span)
            case event_kinds.TurnFallback():
                self._notes.append(_make_note(event))
                self._mending = at
            case event_kinds.TurnEscalated() | event_kinds.TurnRetrying() as body:
                self._notes.append(_make_note(event))
                self._model = body.model or self._model
            case (
                event_kinds.TurnSuspended()
                | event_kinds.TurnDecided()
                | event_kinds.HoldEvent()
                | event_kinds.TurnStopping()
            ):
                self._notes.append(_make_note(event))
            case body:
                if attempt := self._attempts.get(body.attempt):
                    self._read_attempt_event(attempt, event, body)
                    attempt.end = max(attempt.end, at)

    def _start_attempt(self, event: Event, body: event_kinds.AttemptStarted) -> None:
        made = _AttemptTrace(number=body.attempt, model=self._model, start=event.at, end=event.at)
        attempt = self._attempts.setdefault(body.attempt, made)
        attempt.deliveries += 1
        if attempt.deliveries > 1:
            attempt.notes.append(_make_note(event))

    def _read_attempt_event(self, attempt: _AttemptTrace, event: Event, body: kinds.OfAttempt) -> None:
        at = event.at
        match body:
            case event_kinds.AttemptOutput() | event_kinds.AttemptNote():
                pass  # such text has an author
            case event_kinds.AttemptCompleted():
                attempt.verdict, attempt.judged_since = body.verdict, at
                attempt.add_usage(body.usage or {})
            case event_kinds.AttemptAccepted() | event_kinds.AttemptRejected():
                attempt.decision = "accepted" if isinstance(body, event_kinds.AttemptAccepted) else "rejected"
                attempt.codes = error_codes(body.issues)
                self._add_validator_checks(attempt, at, body.issues)
            case event_kinds.AttemptLost():
                attempt.add_usage(body.usage or {})
                attempt.notes.append(_make_note(event))
            case event_kinds.AttemptTool():
                said: dict[str, Value] = {"gen_ai.tool.name": body.name}
                if body.server:
                    said |= {"helix.tool.server": body.server, "helix.tool.result_bytes": body.result_bytes}
                attempt.notes.append(SpanNote(name=body.KIND, at=at, attributes=said))
            case event_kinds.AttemptReset():
                attempt.notes.append(_make_note(event))
            case event_kinds.GateChecked():
                name = body.gate.partition(":")[0]
                codes, skipped = error_codes(body.issues), bool(body.skipped)
                self._add_check(
                    attempt, name, attempt.judged_since or at, at, body.passed, codes=codes, skipped=skipped
                )
                attempt.judged_since = at
            case event_kinds.VerifierStarted():
                self._verifier = (at, body.model)
            case event_kinds.VerifierJudged():
                start, model = self._verifier
                self._add_check(attempt, "verifier", start or at, at, body.success, ground=body.ground, model=model)

    def _add_check(
        self, attempt: _AttemptTrace, name: str, start: float, end: float, passed: bool, **more: Value
    ) -> None:
        key = f"attempt {attempt.number} check {len(self._checks) + 1}"
        attributes: dict[str, Value] = {
            "gen_ai.evaluation.name": name,
            "gen_ai.evaluation.score.label": "pass" if passed else "fail",
            **{f"helix.{label}": value for label, value in more.items()},
        }
        parent = f"attempt {attempt.number}"
        made = Span(key=key, name=f"evaluate {name}", start=start, end=end, parent=parent, attributes=attributes)
        self._checks.append(made)

    def _add_validator_checks(self, attempt: _AttemptTrace, at: float, issues: Sequence[ValidationIssue]) -> None:
        if not find_work(self._turn.request).answers_in_text:
            return
        for name in self._turn.request.validators:
            codes = error_codes(issue for issue in issues if issue.validator == name)
            self._add_check(attempt, name, attempt.judged_since or at, at, not codes, codes=codes)

    def build_spans(self) -> list[Span]:
        return [self._turn_span(), *map(self._attempt_span, self._attempts.values()), *self._checks]

    def _turn_span(self) -> Span:
        turn = self._turn
        kind = turn.request.work or "turn"
        outcome = turn.outcome or Outcome.ERROR
        attributes: dict[str, Value] = {
            "gen_ai.operation.name": "invoke_workflow",
            "gen_ai.workflow.name": kind,
            "gen_ai.conversation.id": turn.request.session_id,
            "helix.turn.id": turn.turn_id,
            "helix.turn.outcome": outcome.value,
            "helix.turn.attempts": turn.attempt,
            "helix.turn.deliveries": turn.delivery,
            "helix.turn.model": turn.request.model,
            **_without_empty({each.span: turn.labels[name] for name, each in LABELS.items() if each.span}),
            **_without_empty({"helix.turn.step": turn.step}),
        }
        return Span(
            key="",
            name=f"invoke_workflow {kind}",
            start=turn.created_at,
            end=max(turn.created_at, turn.finished_at),
            attributes=attributes,
            error="" if outcome.success or outcome in _NO_ERROR else outcome.value,
            notes=tuple(self._notes[:_MOST_NOTES]),
        )

    def _attempt_span(self, attempt: _AttemptTrace) -> Span:
        failed = attempt.decision == "rejected" or attempt.verdict not in ("complete", "cancelled", "")
        attributes: dict[str, Value] = {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.agent.name": attempt.model,
            "gen_ai.request.model": attempt.model,
            "gen_ai.conversation.id": self._turn.request.session_id,
            "helix.attempt.number": attempt.number,
            "helix.attempt.deliveries": attempt.deliveries,
            "helix.attempt.codes": attempt.codes,
            **_without_empty({"gen_ai.provider.name": self._providers.get(attempt.model, "")}),
            **_without_empty({"helix.attempt.verdict": attempt.verdict, "helix.attempt.decision": attempt.decision}),
        }
        # Only attempts have the usage, so that a sum over all spans counts each run once.
        for name in ("input_tokens", "output_tokens"):
            if name in attempt.used:
                attributes[f"gen_ai.usage.{name}"] = int(attempt.used[name])
        if "cost_usd" in attempt.used:
            attributes["helix.usage.cost_usd"] = attempt.used["cost_usd"]
        return Span(
            key=f"attempt {attempt.number}",
            name=f"invoke_agent {attempt.model}",
            start=attempt.start,
            end=attempt.end,
            parent="",
            attributes=attributes,
            error=(attempt.decision or attempt.verdict) if failed else "",
            notes=tuple(attempt.notes[:_MOST_NOTES]),
        )


def _make_note(event: Event) -> SpanNote:
    facts = {name: event.data[name] for name in _ATTRIBUTES if isinstance(event.data.get(name), str | int | float)}
    if not isinstance(event.body, _REASON_OF_OURS):
        facts.pop("reason", None)
    return SpanNote(name=event.kind, at=event.at, attributes={f"helix.{name}": value for name, value in facts.items()})


def _without_empty(attributes: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in attributes.items() if value}
