"""The caller's trace, as the header ``traceparent`` of W3C Trace Context tells it: the turn's span belongs below it."""

from __future__ import annotations

import hashlib
import importlib.util
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from api_client.contract import events as kinds
from api_client.contract.events import Event
from api_client.contract.issues import ValidationIssue, error_codes
from api_client.contract.keys import Keys
from api_client.contract.turn import Outcome, Turn
from api_client.store import Store

#: Version 00 is this and no more; a later version may have more behind it.
_HEADER = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-[\x21-\x7e]{0,200})?")
_SAMPLED = 1


class CallerSpan(NamedTuple):
    """The span of the caller in which the turn was asked for."""

    trace_id: int
    span_id: int


def caller_span(traceparent: str) -> CallerSpan | None:
    """The caller's span; None without one, and where the caller does not record it.

    A header outside the standard is not an error: the turn has its own trace then, as without it.
    """
    read = _HEADER.fullmatch(traceparent)
    if read is None:
        return None
    version, trace, span, flags, more = read.groups()
    found = CallerSpan(int(trace, 16), int(span, 16))
    fits = version != "ff" and not (version == "00" and more)
    return found if fits and all(found) and int(flags, 16) & _SAMPLED else None


def traceparent_of(given: Sequence[str]) -> str:
    """Return the one ``traceparent`` header of a request, if it names a span; else ''."""
    return given[0] if len(given) == 1 and caller_span(given[0]) else ""


# A finished turn as a tree of spans: pure, from its record and its log, so that a repeat makes the same spans. One span
# for the turn, a child per attempt, and below that one per validator, gate or verifier. Names and ``gen_ai.*`` are
# those of OpenTelemetry's semantic conventions for generative AI (agent spans); what is ours begins with ``helix.``. No
# texts: neither prompts and answers, nor what validators, agents and people wrote.

Value = str | int | float | bool | tuple[str, ...]

#: Ends that are not anybody's fault: cancelled turns.
_NO_ERROR = frozenset({Outcome.CANCELLED})
#: What an attempt's or a turn's events say besides, without texts that somebody wrote.
_ATTRIBUTES = ("attempt", "delivery", "during", "silent_ms", "reason", "stage", "kind", "model", "delay_seconds")
#: ``reason`` is a text an agent may have written, but for these kinds.
_REASON_OF_OURS = (kinds.TurnRetrying, kinds.TurnEscalated, kinds.TurnParked, kinds.TurnStopping)
_MOST_NOTES = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """A moment within a span. ``at`` in seconds since the epoch."""

    name: str
    at: float
    attributes: Mapping[str, Value] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """One span. Times in seconds since the epoch, by the store's clock.

    Attributes:
        key: what it is within its turn, such as ``attempt 2``; with the turn's id it makes the span's id.
        parent: the key of the span above; None for the turn's own.
        error: the convention's ``error.type``: what went wrong, from a closed set; empty when nothing did.
    """

    key: str
    name: str
    start: float
    end: float
    parent: str | None = None
    attributes: Mapping[str, Value] = field(default_factory=dict)
    error: str = ""
    notes: tuple[Note, ...] = ()


def trace_id(turn: Turn) -> int:
    """The trace of a turn: its caller's, or the digits of its id, so that either leads to the other."""
    caller = caller_span(turn.request.traceparent)
    return caller.trace_id if caller else int(turn.turn_id.partition("-")[2], 16)


def span_id(turn: Turn, key: str) -> int:
    """A span's id: always the same for the same part of the same turn."""
    return int.from_bytes(hashlib.sha256(f"{turn.turn_id} {turn.epoch} {key}".encode()).digest()[:8], "big")


def spans_of(turn: Turn, events: Iterable[Event], providers: Mapping[str, str]) -> list[Span]:
    """The spans of a finished turn, the turn's own first. ``providers``: model to ``gen_ai.provider.name``.

    A log that was deleted (``turns gc --events``) leaves the turn's own span.
    """
    walk = _Walk(turn, providers)
    for event in events:
        walk.take(event)
    return walk.spans()


@dataclass(slots=True)
class _Attempt:
    """An attempt that is being read. One span, however often it was delivered or broke off with a passing error."""

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
    notes: list[Note] = field(default_factory=list)

    def use(self, usage: Mapping[str, Any]) -> None:
        """Add the use of a run, those that were lost or repeated included."""
        for name, amount in usage.items():
            if isinstance(amount, int | float):
                self.used[name] = self.used.get(name, 0) + amount


class _Walk:
    """Reads a log from its first event to its last."""

    def __init__(self, turn: Turn, providers: Mapping[str, str]) -> None:
        self._turn, self._providers = turn, providers
        self._model = turn.request.model
        self._attempts: dict[int, _Attempt] = {}
        self._checks: list[Span] = []
        self._notes: list[Note] = []
        self._verifier = (0.0, "")
        self._mending = 0.0

    def take(self, event: Event) -> None:
        """Read one event."""
        at = event.at
        match event.body:
            case kinds.TurnQueued() | kinds.TurnFinished() | kinds.LogReset() | kinds.Unknown():
                pass
            case kinds.AttemptStarted() as body:
                self._started(event, body)
            case kinds.TurnMended() as body:
                attributes: dict[str, Value] = {
                    "helix.changes": len(body.changes),
                    "helix.attempt.number": body.attempt,
                }
                span = Span(
                    key="fallback", name="fallback", start=self._mending or at, end=at, parent="", attributes=attributes
                )
                self._checks.append(span)
            case kinds.TurnFallback():
                self._notes.append(_note(event))
                self._mending = at
            case kinds.TurnEscalated() | kinds.TurnRetrying() as body:
                self._notes.append(_note(event))
                self._model = body.model or self._model
            case (
                kinds.TurnParked()
                | kinds.TurnDecided()
                | kinds.TurnPaused()
                | kinds.TurnResumed()
                | kinds.TurnStopping()
            ):
                self._notes.append(_note(event))
            case body:
                if attempt := self._attempts.get(body.attempt):
                    self._of_attempt(attempt, event, body)
                    attempt.end = max(attempt.end, at)

    def _started(self, event: Event, body: kinds.AttemptStarted) -> None:
        made = _Attempt(number=body.attempt, model=self._model, start=event.at, end=event.at)
        attempt = self._attempts.setdefault(body.attempt, made)
        attempt.deliveries += 1
        if attempt.deliveries > 1:
            attempt.notes.append(_note(event))

    def _of_attempt(self, attempt: _Attempt, event: Event, body: kinds.OfAttempt) -> None:
        at = event.at
        match body:
            case kinds.AttemptOutput() | kinds.AttemptNote():
                pass  # somebody's text
            case kinds.AttemptCompleted():
                attempt.verdict, attempt.judged_since = body.verdict, at
                attempt.use(body.usage or {})
            case kinds.AttemptAccepted() | kinds.AttemptRejected():
                attempt.decision = "accepted" if isinstance(body, kinds.AttemptAccepted) else "rejected"
                attempt.codes = error_codes(body.issues)
                self._judged(attempt, at, body.issues)
            case kinds.AttemptLost():
                attempt.use(body.usage or {})
                attempt.notes.append(_note(event))
            case kinds.AttemptTool():
                attempt.notes.append(Note(name=body.KIND, at=at, attributes={"gen_ai.tool.name": body.name}))
            case kinds.AttemptReset():
                attempt.notes.append(_note(event))
            case kinds.GateChecked():
                name = body.gate.partition(":")[0]
                codes, skipped = error_codes(body.issues), bool(body.skipped)
                self._check(attempt, name, attempt.judged_since or at, at, body.passed, codes=codes, skipped=skipped)
                attempt.judged_since = at
            case kinds.VerifierStarted():
                self._verifier = (at, body.model)
            case kinds.VerifierJudged():
                start, model = self._verifier
                self._check(attempt, "verifier", start or at, at, body.success, ground=body.ground, model=model)

    def _check(self, attempt: _Attempt, name: str, start: float, end: float, passed: bool, **more: Value) -> None:
        """A child of an attempt that judged it; numbered, because an attempt taken over is judged again."""
        key = f"attempt {attempt.number} check {len(self._checks) + 1}"
        attributes: dict[str, Value] = {
            "gen_ai.evaluation.name": name,
            "gen_ai.evaluation.score.label": "pass" if passed else "fail",
            **{f"helix.{label}": value for label, value in more.items()},
        }
        parent = f"attempt {attempt.number}"
        made = Span(key=key, name=f"evaluate {name}", start=start, end=end, parent=parent, attributes=attributes)
        self._checks.append(made)

    def _judged(self, attempt: _Attempt, at: float, issues: Sequence[ValidationIssue]) -> None:
        """The validators looked at the answer one after the other: the log knows the time of all of them together."""
        if self._turn.request.phase is not None:
            return
        for name in self._turn.request.validators:
            codes = error_codes(issue for issue in issues if issue.validator == name)
            self._check(attempt, name, attempt.judged_since or at, at, not codes, codes=codes)

    def spans(self) -> list[Span]:
        """Return what was read, as spans."""
        return [self._whole(), *map(self._attempted, self._attempts.values()), *self._checks]

    def _whole(self) -> Span:
        turn = self._turn
        kind = "phase" if turn.request.phase is not None else "turn"
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
            **_given({"helix.turn.flow": turn.flow, "helix.turn.step": turn.step, "helix.replay_of": turn.replay_of}),
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

    def _attempted(self, attempt: _Attempt) -> Span:
        failed = attempt.decision == "rejected" or attempt.verdict not in ("complete", "cancelled", "")
        attributes: dict[str, Value] = {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.agent.name": attempt.model,
            "gen_ai.request.model": attempt.model,
            "gen_ai.conversation.id": self._turn.request.session_id,
            "helix.attempt.number": attempt.number,
            "helix.attempt.deliveries": attempt.deliveries,
            "helix.attempt.codes": attempt.codes,
            **_given({"gen_ai.provider.name": self._providers.get(attempt.model, "")}),
            **_given({"helix.attempt.verdict": attempt.verdict, "helix.attempt.decision": attempt.decision}),
        }
        # Only here, not on the turn too: a sum over the spans counts every run once, failed ones included.
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


def _note(event: Event) -> Note:
    facts = {name: event.data[name] for name in _ATTRIBUTES if isinstance(event.data.get(name), str | int | float)}
    if not isinstance(event.body, _REASON_OF_OURS):
        facts.pop("reason", None)
    return Note(name=event.kind, at=event.at, attributes={f"helix.{name}": value for name, value in facts.items()})


def _given(attributes: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in attributes.items() if value}


# The finished turns still to be sent as traces: those that ended since the time noted in the store. The time moves on
# after the receiver took the spans: none is left out, and a sender killed in between sends the same spans once more.
# Nothing here is in the way of a turn: the list of finished turns is there anyway.

#: When the store's clock was set back, turns of so long before are sent again, in ms.
_OVERLAP_MS = 60_000
#: Where nothing ends, the time is noted so often.
_IDLE_MS = 30_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Turns of one shard that ended before ``until`` (ms of the store's clock), and after the batch before."""

    shard: int
    turn_ids: tuple[str, ...]
    until: int


class UnsentSpans:
    """Reads and notes how far it has come. Each method raises ``StoreUnavailable`` when the store does not answer."""

    def __init__(self, store: Store) -> None:
        self._redis, self._ask, self._clock_ms = store.redis, store.ask, store.clock_ms
        self._keys = store.shards
        self._life = int(store.settings.retention_seconds)

    async def begin(self, since_seconds: float | None = None) -> None:
        """Begin with turns that ended so long ago or later; None: where it left off, at first with those from now."""
        now = await self._clock_ms()
        for keys in self._keys:
            if since_seconds is None:
                await self._ask(self._redis.set(keys.traced, now, nx=True, ex=self._life))
            else:
                await self._note(keys, now - round(since_seconds * 1000))

    async def next(self, size: int) -> Batch | None:
        """About ``size`` turns that come next; None when none waits."""
        now = await self._clock_ms()
        for shard, keys in enumerate(self._keys):
            since = int(await self._ask(self._redis.get(keys.traced)) or now)
            if since > now:
                since = now - _OVERLAP_MS
            # Up to now, exclusively: a turn that ends in this very millisecond must not be left out.
            found = await self._ask(
                self._redis.zrangebyscore(keys.finished, since, f"({now}", start=0, num=size, withscores=True)
            )
            if not found:
                if now - since > _IDLE_MS:
                    await self._note(keys, now)
                continue
            last = int(found[-1][1])
            # All that ended in the same millisecond as the last of them, so that the next batch begins after it.
            same = await self._ask(self._redis.zrangebyscore(keys.finished, last, last))
            ids = dict.fromkeys([turn_id.decode() for turn_id, _ in found] + [turn_id.decode() for turn_id in same])
            return Batch(shard=shard, turn_ids=tuple(ids), until=last + 1)
        return None

    async def sent(self, batch: Batch) -> None:
        """Note that a batch is done."""
        await self._note(self._keys[batch.shard], batch.until)

    async def waiting(self, longer_than: float) -> int | None:
        """Count turns that ended longer ago than that (seconds) and are not sent; None where nothing was ever sent."""
        until = await self._clock_ms() - round(longer_than * 1000)
        found = None
        for keys in self._keys:
            if since := await self._ask(self._redis.get(keys.traced)):
                found = (found or 0) + int(await self._ask(self._redis.zcount(keys.finished, int(since), f"({until}")))
        return found

    async def _note(self, keys: Keys, until: int) -> None:
        """It lives as long as turns do: where traces were given up, nothing waits to be sent any more."""
        await self._ask(self._redis.set(keys.traced, until, ex=self._life))


# The switch of traces: on where OpenTelemetry is installed and its own variables name a receiver.

_INSTALL = 'pip install ".[otel]" in the checkout'
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")


def endpoint(environ: Mapping[str, str]) -> str:
    """The receiver the standard's variables name; empty when they name none, or switch traces off."""
    off = environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    exporters = environ.get("OTEL_TRACES_EXPORTER", "").replace(" ", "").split(",")
    if off or not {"", "otlp"} & set(exporters):
        return ""
    return _first(environ, _ENDPOINTS)


def why_off(environ: Mapping[str, str]) -> str:
    """Return why nothing is sent, and what to do about it; empty when turns are sent."""
    if not endpoint(environ):
        return "no receiver: set OTEL_EXPORTER_OTLP_ENDPOINT=http://host:4318 (docs/operations.md)"
    protocol = _first(environ, _PROTOCOLS)
    if protocol not in ("", "http/protobuf"):
        return f"OTEL_EXPORTER_OTLP_PROTOCOL={protocol}: only http/protobuf is spoken here, port 4318 of most receivers"
    if not _installed():
        return f"OpenTelemetry is not installed: {_INSTALL}"
    return ""


def _installed() -> bool:
    try:
        names = ("opentelemetry.sdk.trace", "opentelemetry.exporter.otlp.proto.http")
        return all(importlib.util.find_spec(name) for name in names)
    except ModuleNotFoundError:  # of a package above
        return False


def _first(environ: Mapping[str, str], names: tuple[str, ...]) -> str:
    return next((value for name in names if (value := environ.get(name, "").strip())), "")
