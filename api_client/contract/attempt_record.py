"""An attempt: one agent run of a turn, and what was made of its answer."""

from __future__ import annotations

from dataclasses import asdict, field
from typing import Any, ParamSpec, TypeVar

from api_client.contract.frozen import frozen
from api_client.contract.issue import ValidationIssue


@frozen(slots=True, kw_only=True)
class AttemptFacts:
    """The record of one agent run of a turn. Times in seconds since the epoch, 0 when not yet.

    Attributes:
        prompt: what the agent was asked: the user's message, or the feedback.
        sent: what it was really sent, where that is more than ``prompt``: system, messages, continues. Secrets masked.
        text: the raw answer of this attempt; of one that went on from a break: the text so far, and what it added.
        answer: the text that was judged: ``text``, or the repaired part spliced into the answer before it.
        completion: evidence of the completion gate: ``{"verdict": ..., "reason": ..., ...}``.
        edits: where ``answer`` is not ``text``: what of the text was put in, and what was left out, in words.
        issues: what the validators found.
        decision: accept | retry | fallback | fail, or empty when it was never judged.
        feedback: what the agent is asked because of this attempt, when it is asked again.
        goes_on: this attempt broke off; the next one, or after a passing error itself, goes on from its text.
        ``mended``, changes, remaining: what a fallback made of ``answer``, what it changed, and the issues it left.
        shadow: what rules in shadow found in ``answer``; it decided nothing.
        verification: what gates and a verifier found, where these judge.
        evidence: what rules collected about the run, by rule.
        deliveries: how often it was started; more than one means that a worker died or froze in it.
        last_delivery: number, over the whole turn, of the delivery whose result this is.
    """

    prompt: str = ""
    sent: dict[str, Any] = field(default_factory=dict)
    text: str = ""
    answer: str = ""
    completion: dict[str, Any] = field(default_factory=dict)
    edits: tuple[str, ...] = ()
    issues: tuple[ValidationIssue, ...] = ()
    shadow: tuple[ValidationIssue, ...] = ()
    decision: str = ""
    feedback: str = ""
    goes_on: bool = False
    mended: str = ""
    changes: tuple[str, ...] = ()
    remaining: tuple[ValidationIssue, ...] = ()
    usage: dict[str, Any] = field(default_factory=dict)
    verification: dict[str, Any] = field(default_factory=dict)
    evidence: dict[str, Any] = field(default_factory=dict)
    started_at: float = 0.0
    finished_at: float = 0.0
    worker: str = ""
    deliveries: int = 0
    last_delivery: int = 0


@frozen(slots=True, kw_only=True)
class AttemptRecord(AttemptFacts):
    """One agent run of a turn, as it stays queryable, with its number, from 1."""

    number: int

    def to_dict(self) -> dict[str, Any]:
        """The attempt as a JSON-ready mapping."""
        return {"number": self.number} | asdict(self)


P = ParamSpec("P")
T = TypeVar("T")


def _seconds(text: str) -> float:
    return int(text or 0) / 1000
