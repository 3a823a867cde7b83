"""Statistics about turns, validation rules and durations over a period.

Rates without any counts are None, never 0. Money is in US dollars, times in seconds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from api_client.contract.catalogue import collect_declarations
from api_client.contract.turn_labels import COUNTED, OWN_COUNTERS

_LABELS = (*COUNTED, *OWN_COUNTERS)
#: Breakdowns of figures. By validator and code the rows are ``RuleRow``, otherwise ``TurnRow``.
BREAKDOWNS = ("outcome", "model", "step", *_LABELS, "validator", "code", "validator_model", "owner", "key")
RETRY_BREAKDOWNS = ("validator", "code", "model", "step", *_LABELS, "session")


#: What capabilities let follow from a rejected answer: decision -> name in figures, and words about phases.
REACTIONS: Mapping[str, tuple[str, str]] = collect_declarations("REACTIONS")


def zero_reactions() -> dict[str, int]:
    """Return a count of 0 for each possible reaction to a rejected answer, by the reaction's name in statistics."""
    return {name: 0 for name, _ in REACTIONS.values()}


def ratio(part: float, whole: float) -> float | None:
    """Return ``part`` divided by ``whole``, or None if ``whole`` is 0."""
    return part / whole if whole else None


@dataclass(slots=True, kw_only=True)
class TurnRow:
    """Statistics of the finished turns of one group, such as a model or an outcome.

    Attributes:
        name: outcome, model, step or label; ``total`` for all turns.
        passed: turns with an accepted answer; ``repaired`` of them needed the fallback.
        asked_again: turns with at least one rejected attempt that was followed by another.
        gave_up: turns that ended ``failed`` or ``refused``.
        errors: turns without a verdict: incomplete, error, expired, dead.
        runs: finished agent runs (only by model and in total, like all fields below).
        rejected: runs whose answer was not accepted.
        tokens, cost_usd: of all runs. failed_tokens, failed_cost_usd: of runs whose answer was not accepted.
    """

    name: str
    turns: int = 0
    passed: int = 0
    asked_again: int = 0
    repaired: int = 0
    gave_up: int = 0
    errors: int = 0
    cancelled: int = 0
    runs: int = 0
    rejected: int = 0
    tokens: int = 0
    failed_tokens: int = 0
    cost_usd: float = 0.0
    failed_cost_usd: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        rates = {
            "success_rate": ratio(self.passed, self.turns),
            "retry_rate": ratio(self.asked_again, self.turns),
            "fallback_rate": ratio(self.repaired, self.turns),
            "give_up_rate": ratio(self.gave_up, self.turns),
            "error_rate": ratio(self.errors, self.turns),
        }
        return asdict(self) | rates


def _flat(row: RuleRow | PhaseRow) -> dict[str, Any]:
    return {name: value for name, value in asdict(row).items() if name != "others"} | row.others


@dataclass(slots=True, kw_only=True)
class RuleRow:
    """Statistics of one validator or issue code: rejected answers, and the reactions to the rejections.

    Attributes:
        judged: answers that the validator checked; for a code all checked answers, for a gate or the verifier all
            verified outputs of phases.
        rejected: answers with errors of the rule. Then ``retried``: the agent ran again, ``fallback``: code tried to
            repair the answer, ``others``: what capabilities did, by its name, ``failed``: none of these.
        gave_up: turns that failed with errors of the rule left.
    """

    name: str
    validated: int = 0
    rejected: int = 0
    retried: int = 0
    fallback: int = 0
    others: dict[str, int] = field(default_factory=zero_reactions)
    failed: int = 0
    gave_up: int = 0

    @property
    def rate(self) -> float | None:
        """Return the share of checked answers that were rejected, or None if none was checked."""
        return ratio(self.rejected, self.validated)

    def to_dict(self) -> dict[str, Any]:
        rates = {
            "rejection_rate": self.rate,
            "retry_rate": ratio(self.retried, self.validated),
            "fallback_rate": ratio(self.fallback, self.validated),
            "give_up_rate": ratio(self.gave_up, self.validated),
        }
        return _flat(self) | rates


@dataclass(slots=True, kw_only=True)
class PhaseRow:
    """Statistics of verified phase attempts."""

    verified: int = 0
    passed: int = 0
    asked_again: int = 0
    others: dict[str, int] = field(default_factory=zero_reactions)
    failed: int = 0

    @property
    def rate(self) -> float | None:
        """Return the share of verified attempts that were accepted, or None if none was verified."""
        return ratio(self.passed, self.verified)

    @property
    def attempts(self) -> float | None:
        """Return the average number of verified attempts per accepted attempt, or None if none was accepted."""
        return ratio(self.verified, self.passed)

    def to_dict(self) -> dict[str, Any]:
        return _flat(self) | {"pass_rate": self.rate, "attempts_per_pass": self.attempts}


@dataclass(frozen=True, slots=True, kw_only=True)
class Duration:
    """A histogram of one measured duration, such as the waiting time of turns.

    ``buckets`` are pairs of upper bound in seconds and count within that bucket alone; the last bound is infinite.
    """

    name: str
    count: int
    seconds: float
    buckets: tuple[tuple[float, int], ...] = ()

    @property
    def mean(self) -> float | None:
        """Return the average duration in seconds, or None without measurements."""
        return ratio(self.seconds, self.count)

    def quantile(self, part: float) -> float | None:
        """Estimate a quantile of the duration in seconds, such as the median for 0.5. Return None without data."""
        wanted, seen, low = part * self.count, 0, 0.0
        for bound, count in self.buckets:
            if count and seen + count >= wanted:
                return low if math.isinf(bound) else low + (bound - low) * (wanted - seen) / count
            seen, low = seen + count, bound
        return None

    def to_dict(self) -> dict[str, Any]:
        quantiles = {"p50": self.quantile(0.5), "p95": self.quantile(0.95), "p99": self.quantile(0.99)}
        return {"name": self.name, "count": self.count, "seconds": self.seconds, "mean": self.mean, **quantiles}


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """Statistics of an installation between ``since`` and ``until`` (seconds since the epoch).

    ``others`` are the counters that declare a figure, by its name, over chats and phases.
    """

    since: float
    until: float
    by: str
    total: TurnRow
    submitted: int
    started: int
    lost: int
    handed_over: int
    rows: tuple[TurnRow | RuleRow, ...] = ()
    durations: tuple[Duration, ...] = ()
    outcomes: Mapping[str, int] = field(default_factory=dict)
    phases: PhaseRow = field(default_factory=PhaseRow)
    others: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return {
            "since": self.since,
            "until": self.until,
            "by": self.by or None,
            "total": self.total.to_dict(),
            "deliveries": {"started": self.started, "lost": self.lost, "handed_over": self.handed_over},
            "submitted": self.submitted,
            "outcomes": dict(self.outcomes),
            "phases": self.phases.to_dict(),
            **{name: dict(counts) for name, counts in self.others.items()},
            "durations": [duration.to_dict() for duration in self.durations],
            "rows": [row.to_dict() for row in self.rows],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """Statistics of one section of a longer period. ``start`` is in seconds since the epoch."""

    start: float
    seconds: float
    stats: Stats


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryShare:
    """The share of a group's validated attempts or turns that were rejected.

    Rows of a validator or code count attempts, other rows count turns.
    """

    name: str
    rejected: int
    validated: int

    @property
    def rate(self) -> float | None:
        """Return the rejected share from 0 to 1, or None if nothing was validated."""
        return ratio(self.rejected, self.validated)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryRate:
    """The rate at which rejected answers made agents run again.

    ``rate`` is turns with at least one validation retry ÷ finished turns; by validator or code, rejected attempts ÷
    validated attempts. Deliveries lost to crashes do not count. ``pieces`` are equal sections of the same period,
    oldest first; the last one is still running.
    """

    since_seconds: float
    turns: int
    retried: int
    rows: tuple[RetryShare, ...] = ()
    start: float = 0.0
    pieces: tuple[RetryRate, ...] = ()

    @property
    def rate(self) -> float | None:
        """Return retried turns divided by finished turns, or None if no turn has finished."""
        return ratio(self.retried, self.turns)

    def to_dict(self) -> dict[str, Any]:
        rows = [{**asdict(row), "rate": row.rate} for row in self.rows]
        return {
            "start": self.start,
            "since_seconds": self.since_seconds,
            "turns": self.turns,
            "retried": self.retried,
            "rate": self.rate,
            "rows": rows,
            **({"pieces": [piece.to_dict() for piece in self.pieces]} if self.pieces else {}),
        }
