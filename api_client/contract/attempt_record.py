"""An attempt: one agent run of a turn and the validation of its answer."""

from __future__ import annotations

from dataclasses import asdict, field
from typing import Any, ParamSpec, TypeVar

from api_client.contract.frozen import checked_frozen
from api_client.contract.issue import ValidationIssue


@checked_frozen(slots=True, kw_only=True)
class AttemptFacts:
    """The facts about one agent run of a turn: prompt, answer, findings, decision and usage.

    Attributes:
        prompt: the user's message, or the feedback on the attempt before.
        sent: what the agent received beyond ``prompt``: system prompt, messages, continuation. Secrets are masked.
        text: the raw answer; after a continuation, the text so far and what was added.
        answer: the validated text: ``text``, or the repaired part spliced into the answer before.
        completion: verdict on the run, with its evidence: ``{"verdict": ..., "reason": ..., ...}``.
        edits: in words, how ``answer`` was made from ``text``; empty if they are equal.
        decision: accept | retry | fallback | fail, or empty if the answer was never validated.
        feedback: what the agent is asked next because of this attempt.
        goes_on: the run broke off; the next run continues its text.
        ``mended``, changes, remaining: the fallback's repaired answer, its changes, and the issues it left.
        shadow: findings of rules in shadow mode; they decide nothing.
        verification: findings of gates and of the verifier of a phase.
        deliveries: how often the run was started; more than one means that a worker died or froze.
        last_delivery: number, within the turn, of the delivery that gave this result.
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


@checked_frozen(slots=True, kw_only=True)
class AttemptRecord(AttemptFacts):
    """The record of an agent run of a turn. Runs are numbered from 1."""

    number: int

    def to_dict(self) -> dict[str, Any]:
        return {"number": self.number} | asdict(self)


P = ParamSpec("P")
T = TypeVar("T")


def _parse_seconds(text: str) -> float:
    return int(text or 0) / 1000
