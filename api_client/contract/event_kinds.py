"""Content of a turn's events: one frozen dataclass for each kind.

A new kind is a class here that is added to ``Body``; ``make lint`` then names every reader that must handle it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from api_client.contract.interruption import Interruption
from api_client.contract.issue import ValidationIssue
from api_client.contract.turn_error import TurnError


class EventKind:
    """Base class for the content of events. Each kind has a name and a version, which incompatible changes increase."""

    __slots__ = ()
    KIND: ClassVar[str]
    VERSION: ClassVar[int] = 1


class HoldEvent(EventKind):
    """Base class for events about something that holds a turn back, or about its end.

    ``clean`` makes a text fit for one line. ``BAR`` is kind and meaning of the bar that begins on the turn's chart;
    empty if the turn waits for a worker.
    """

    __slots__ = ()
    BAR: ClassVar[tuple[str, str]] = ("", "")

    def describe(self, locale: str, clean: Callable[[str], str]) -> str:
        """Return the sentence that a chat shows for this event."""
        raise NotImplementedError

    def describe_for_terminal(self, clean: Callable[[str], str]) -> str:
        """Return the English line that a terminal shows for this event."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnQueued(EventKind):
    """Reports that the turn is stored and waits. ``position`` counts the session's turns before it."""

    KIND = "turn.queued"
    position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptStarted(EventKind):
    """Reports that the agent starts working on an attempt."""

    KIND = "attempt.started"
    attempt: int
    delivery: int
    max_attempts: int
    worker: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptOutput(EventKind):
    """Carries a piece of the agent's answer, which is a draft until the attempt is accepted."""

    KIND = "attempt.output"
    attempt: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptReset(EventKind):
    """Withdraws the attempt's draft, because the agent writes its answer anew."""

    KIND = "attempt.reset"
    attempt: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptTool(EventKind):
    """Reports that the agent uses a tool. With ``server``, the call went through the tool gateway and has ended."""

    KIND = "attempt.tool"
    attempt: int
    name: str
    detail: str
    server: str = ""
    result_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptNote(EventKind):
    """Carries a remark about the attempt for a status line."""

    KIND = "attempt.note"
    attempt: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptCompleted(EventKind):
    """Reports that the agent has ended. ``usage``, if known, has input_tokens, output_tokens and cost_usd."""

    KIND = "attempt.completed"
    attempt: int
    verdict: str
    reason: str
    usage: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GateChecked(EventKind):
    """Reports that a quality gate was run, or was skipped for the reason ``skipped``."""

    KIND = "gate.checked"
    attempt: int
    gate: str
    passed: bool
    skipped: str
    issues: tuple[ValidationIssue, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifierStarted(EventKind):
    """Reports that an independent agent starts to verify the output."""

    KIND = "verifier.started"
    attempt: int
    model: str


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifierJudged(EventKind):
    """Reports the verdict of the independent agent that verified the output."""

    KIND = "verifier.judged"
    attempt: int
    success: bool
    ground: str
    errors: tuple[str, ...]
    checks_passed: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptAccepted(EventKind):
    """Reports that all active validators accept the answer. ``issues`` are warnings."""

    KIND = "attempt.accepted"
    attempt: int
    issues: tuple[ValidationIssue, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRejected(EventKind):
    """Withdraws the draft, because validators found errors."""

    KIND = "attempt.rejected"
    attempt: int
    issues: tuple[ValidationIssue, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptLost(EventKind):
    """Withdraws the draft, because the worker died, froze or handed the attempt over."""

    KIND = "attempt.lost"
    attempt: int
    delivery: int
    during: str
    silent_ms: int = 0
    usage: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRetrying(EventKind):
    """Reports that the agent runs again. ``reason`` is rejected, incomplete, transient, decided or model (a change)."""

    KIND = "turn.retrying"
    attempt: int
    max_attempts: int
    reason: str
    model: str = ""
    codes: tuple[str, ...]
    feedback: str
    goes_on: bool
    delay_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnFallback(EventKind):
    """Reports that a fallback tries to repair the best answer."""

    KIND = "turn.fallback"
    attempt: int
    codes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnMended(EventKind):
    """Reports that the fallback changed the answer. ``fixed`` lists the issues that it repaired."""

    KIND = "turn.mended"
    attempt: int
    changes: tuple[str, ...]
    fixed: tuple[ValidationIssue, ...]
    step: str
    step_source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnEscalated(EventKind):
    """Reports that another ``model`` (``stage`` 1) or a person (``stage`` 2) is asked, because all attempts failed."""

    KIND = "turn.escalated"
    attempt: int
    stage: int
    reason: str
    model: str = ""
    issues: tuple[ValidationIssue, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnSuspended(EventKind):
    """Reports that the turn waits for an answer to ``interruption``: question, who may answer, time limit, default."""

    KIND = "turn.suspended"
    attempt: int
    turn_id: str
    reason: str
    interruption: Interruption | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnDecided(EventKind):
    """Reports that a person decided, or that the time limit passed without a decision."""

    KIND = "turn.decided"
    attempt: int
    kind: str
    by: str
    for_: str
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnStopping(EventKind):
    """Reports that the turn was asked to stop, and that its agent is being ended."""

    KIND = "turn.stopping"
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnFinished(EventKind):
    """Reports the end of the turn, as its last event. ``markers`` are the positions of the answer's step markers."""

    KIND = "turn.finished"
    outcome: str
    success: bool
    attempts: int
    deliveries: int
    response: str
    step: str
    step_source: str
    markers: list[Any] | None
    error: TurnError | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogReset(EventKind):
    """Tells a reader to discard all earlier events, because the whole log follows. Never stored in a log."""

    KIND = "log.reset"
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownEvent:
    """Stands for an event of a kind or version that this program does not know. Readers skip it."""

    KIND: str
    data: Mapping[str, Any]
