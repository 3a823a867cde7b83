"""Content of a turn's events: one frozen dataclass for each kind.

``events`` has the wire form. To add a kind, write its class here and add it to ``Body``; ``make lint`` then names
every reader that must handle the new kind. A capability that holds turns back declares its own kinds (``HoldEvent``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from api_client.contract.interruption import Interruption
from api_client.contract.issue import ValidationIssue
from api_client.contract.turn_error import TurnError


class EventKind:
    """Base class of event kinds: a name, and a version that rises when a field is removed or changes its meaning."""

    __slots__ = ()
    KIND: ClassVar[str]
    VERSION: ClassVar[int] = 1


class HoldEvent(EventKind):
    """Base class of events by which a capability keeps a turn from starting, or lets it go on.

    Faces show such events by these methods and know no such kind by name. ``clean`` makes a text fit for one line.

    Attributes:
        BAR: kind and meaning of the bar that begins now on the turn's chart; empty if the turn waits for a worker.
    """

    __slots__ = ()
    BAR: ClassVar[tuple[str, str]] = ("", "")

    def describe(self, locale: str, clean: Callable[[str], str]) -> str:
        """Return the sentence that a chat shows."""
        raise NotImplementedError

    def describe_for_terminal(self, clean: Callable[[str], str]) -> str:
        """Return the English line that a terminal shows."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnQueued(EventKind):
    """The turn is stored; ``position`` counts the turns of this session before it."""

    KIND = "turn.queued"
    position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptStarted(EventKind):
    """An agent starts."""

    KIND = "attempt.started"
    attempt: int
    delivery: int
    max_attempts: int
    worker: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptOutput(EventKind):
    """A piece of the answer, a draft until the attempt is accepted."""

    KIND = "attempt.output"
    attempt: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptReset(EventKind):
    """The draft of this attempt so far is void; the agent begins its text again."""

    KIND = "attempt.reset"
    attempt: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptTool(EventKind):
    """The agent uses a tool. With ``server``, the call went through the tool gateway and has ended."""

    KIND = "attempt.tool"
    attempt: int
    name: str
    detail: str
    server: str = ""
    result_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptNote(EventKind):
    """Something worth a line in the status."""

    KIND = "attempt.note"
    attempt: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptCompleted(EventKind):
    """The agent ended; ``usage``, when it was reported: input_tokens, output_tokens, cost_usd."""

    KIND = "attempt.completed"
    attempt: int
    verdict: str
    reason: str
    usage: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GateChecked(EventKind):
    """A gate was run; ``skipped`` is why not, or empty."""

    KIND = "gate.checked"
    attempt: int
    gate: str
    passed: bool
    skipped: str
    issues: tuple[ValidationIssue, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifierStarted(EventKind):
    """An independent agent verifies the output."""

    KIND = "verifier.started"
    attempt: int
    model: str


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifierJudged(EventKind):
    """The independent agent's verdict."""

    KIND = "verifier.judged"
    attempt: int
    success: bool
    ground: str
    errors: tuple[str, ...]
    checks_passed: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptAccepted(EventKind):
    """The answer is accepted by every active validator; ``issues`` are warnings."""

    KIND = "attempt.accepted"
    attempt: int
    issues: tuple[ValidationIssue, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRejected(EventKind):
    """Validators found errors; the draft is taken back."""

    KIND = "attempt.rejected"
    attempt: int
    issues: tuple[ValidationIssue, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptLost(EventKind):
    """The worker died, froze or handed the attempt over; the draft is taken back."""

    KIND = "attempt.lost"
    attempt: int
    delivery: int
    during: str
    silent_ms: int = 0
    usage: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRetrying(EventKind):
    """The agent is asked again, by ``reason``: rejected, incomplete, transient, decided, model (another ``model``)."""

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
    """A fallback is tried on the best answer."""

    KIND = "turn.fallback"
    attempt: int
    codes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnMended(EventKind):
    """The fallback changed the answer; ``fixed`` are the issues it repaired."""

    KIND = "turn.mended"
    attempt: int
    changes: tuple[str, ...]
    fixed: tuple[ValidationIssue, ...]
    step: str
    step_source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnEscalated(EventKind):
    """The attempts failed; ``stage`` 1 asks another ``model``, 2 a person."""

    KIND = "turn.escalated"
    attempt: int
    stage: int
    reason: str
    model: str = ""
    issues: tuple[ValidationIssue, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnSuspended(EventKind):
    """The turn waits for an answer to ``interruption``: question, who may answer, time limit, meaning of silence."""

    KIND = "turn.suspended"
    attempt: int
    turn_id: str
    reason: str
    interruption: Interruption | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnDecided(EventKind):
    """A person decided, or the time-out did."""

    KIND = "turn.decided"
    attempt: int
    kind: str
    by: str
    for_: str
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnStopping(EventKind):
    """The turn is asked to stop; its agent is being ended."""

    KIND = "turn.stopping"
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnFinished(EventKind):
    """The end, once; ``markers`` are the places of its step markers."""

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
    """Is in no log: what this reader saw is void, and the log follows from its first event."""

    KIND = "log.reset"
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownEvent:
    """An event kind, or a version of one, that a newer program wrote. Readers skip it."""

    KIND: str
    data: Mapping[str, Any]
