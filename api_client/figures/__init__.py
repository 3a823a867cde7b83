"""Figures of a span of time: turns, rules, durations. ``rollup`` makes it of counters.

Rates are None, never 0, where nothing was counted. Money is in US dollars, times are in seconds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

#: What figures can be broken down by. By validator and code the rows are ``RuleRow``s, else ``TurnRow``s.
BREAKDOWNS = ("outcome", "model", "step", "flow", "policy", "validator", "code", "validator_model", "owner", "key")
#: What a retry rate can be broken down by.
RETRY_BREAKDOWNS = ("validator", "code", "model", "step", "flow", "policy", "session")


def share(part: float, whole: float) -> float | None:
    """``part`` of ``whole``; None when there is no whole."""
    return part / whole if whole else None


@dataclass(slots=True, kw_only=True)
class TurnRow:
    """Finished turns, and what agents used meanwhile.

    Attributes:
        name: the outcome, model, step or flow version; ``total`` for all together.
        passed: ended with an accepted answer; ``repaired`` of these needed the fallback.
        asked_again: at least one rejected attempt was followed by another.
        gave_up: ended ``failed``, with errors that nothing could repair, or ``refused``.
        errors: ended without a verdict: incomplete, error, expired, dead. cancelled: somebody cancelled them.
        runs: agent runs that ended (by model and in total only, as all that follow): rejected ones had an answer that
            was not accepted.
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
        """The figures as a JSON-ready mapping, with the rates of turns."""
        rates = {
            "success_rate": share(self.passed, self.turns),
            "retry_rate": share(self.asked_again, self.turns),
            "fallback_rate": share(self.repaired, self.turns),
            "give_up_rate": share(self.gave_up, self.turns),
            "error_rate": share(self.errors, self.turns),
        }
        return asdict(self) | rates


@dataclass(slots=True, kw_only=True)
class RuleRow:
    """The effect of a validator, or an issue code, on answers.

    Attributes:
        judged: answers it could have rejected: those the validator judged; for a code, all that were judged;
            for a gate or a verifier, all outputs of phases that were verified.
        rejected: those it found errors in. What followed: ``retried`` the agent was asked again, ``fallback`` code
            tried to repair it, ``escalated`` it was handed on, ``failed`` none of these.
        gave_up: turns that failed with its errors left.
    """

    name: str
    judged: int = 0
    rejected: int = 0
    retried: int = 0
    fallback: int = 0
    escalated: int = 0
    failed: int = 0
    gave_up: int = 0

    @property
    def rate(self) -> float | None:
        """Rejected answers divided by judged ones."""
        return share(self.rejected, self.judged)

    def to_dict(self) -> dict[str, Any]:
        """The figures as a JSON-ready mapping, with their rates."""
        rates = {
            "rejection_rate": self.rate,
            "retry_rate": share(self.retried, self.judged),
            "fallback_rate": share(self.fallback, self.judged),
            "give_up_rate": share(self.gave_up, self.judged),
        }
        return asdict(self) | rates


@dataclass(slots=True, kw_only=True)
class PhaseRow:
    """Attempts of phases that were verified.

    Attributes:
        judged: verifications with an outcome. passed: the output was verified. asked_again: its agent was, with
            feedback. escalated: it was handed on, to another model or a person. failed: the phase ended with it.
    """

    judged: int = 0
    passed: int = 0
    asked_again: int = 0
    escalated: int = 0
    failed: int = 0

    @property
    def rate(self) -> float | None:
        """Verified attempts divided by judged ones."""
        return share(self.passed, self.judged)

    @property
    def attempts(self) -> float | None:
        """Attempts it took for each that was verified."""
        return share(self.judged, self.passed)

    def to_dict(self) -> dict[str, Any]:
        """The figures as a JSON-ready mapping, with their rates."""
        return asdict(self) | {"pass_rate": self.rate, "attempts_per_pass": self.attempts}


@dataclass(frozen=True, slots=True, kw_only=True)
class Duration:
    """The time that something took: ``count`` times, ``seconds`` in all.

    ``buckets`` are (upper bound in seconds, count within that bucket alone), the last bound infinite.
    """

    name: str
    count: int
    seconds: float
    buckets: tuple[tuple[float, int], ...] = ()

    @property
    def mean(self) -> float | None:
        """Seconds on average."""
        return share(self.seconds, self.count)

    def quantile(self, part: float) -> float | None:
        """The time that ``part`` (0 to 1) of all took at most, in seconds; interpolated within its bucket."""
        wanted, seen, low = part * self.count, 0, 0.0
        for bound, count in self.buckets:
            if count and seen + count >= wanted:
                return low if math.isinf(bound) else low + (bound - low) * (wanted - seen) / count
            seen, low = seen + count, bound
        return None

    def to_dict(self) -> dict[str, Any]:
        """The figures as a JSON-ready mapping."""
        quantiles = {"p50": self.quantile(0.5), "p95": self.quantile(0.95), "p99": self.quantile(0.99)}
        return {"name": self.name, "count": self.count, "seconds": self.seconds, "mean": self.mean, **quantiles}


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """The figures of a span of time (``since`` to ``until``, seconds since the epoch).

    ``escalated`` is by stage (``model``, ``person``) and ``decided`` by what was decided, of phases and messages alike.
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
    escalated: Mapping[str, int] = field(default_factory=dict)
    decided: Mapping[str, int] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """The figures as a JSON-ready mapping."""
        return {
            "since": self.since,
            "until": self.until,
            "by": self.by or None,
            "total": self.total.to_dict(),
            "deliveries": {"started": self.started, "lost": self.lost, "handed_over": self.handed_over},
            "submitted": self.submitted,
            "outcomes": dict(self.outcomes),
            "phases": self.phases.to_dict(),
            "escalated": dict(self.escalated),
            "decided": dict(self.decided),
            "durations": [duration.to_dict() for duration in self.durations],
            "rows": [row.to_dict() for row in self.rows],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """The figures of one piece of a longer time: ``start`` in seconds since the epoch, ``seconds`` long."""

    start: float
    seconds: float
    stats: Stats


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """One line of a retry rate: ``rejected`` of ``validated`` (attempts by validator or code, else turns)."""

    name: str
    rejected: int
    validated: int

    @property
    def rate(self) -> float | None:
        """0 to 1; None when nothing was counted."""
        return share(self.rejected, self.validated)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryRate:
    """The rate at which agents had to be asked again.

    ``rate`` is turns with at least one validation retry ÷ finished turns; in ``rows``, by validator or code, it is
    rejected attempts ÷ validated attempts, and otherwise it is turns again. Deliveries lost to crashes do not count.

    Attributes:
        since_seconds: how long the time is. start: when it begins, in seconds since the epoch.
        turns: finished ones; retried: those of them that were asked again.
        pieces: the same time in equal pieces, oldest first, where that was asked for; the last is the present one.
    """

    since_seconds: float
    turns: int
    retried: int
    rows: tuple[Share, ...] = ()
    start: float = 0.0
    pieces: tuple[RetryRate, ...] = ()

    @property
    def rate(self) -> float | None:
        """0 to 1; None when no turn finished in that time."""
        return share(self.retried, self.turns)

    def to_dict(self) -> dict[str, Any]:
        """The figures as a JSON-ready mapping."""
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
