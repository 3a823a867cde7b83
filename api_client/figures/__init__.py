"""Figures of a span of time: turns, rules, durations. ``rollup`` makes it of counters.

Rates are None, never 0, where nothing was counted. Money is in US dollars, times are in seconds.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from api_client.contract.counters import BEYOND, BOUNDS_MS, COUNTERS, label, parse
from api_client.contract.policy import DecisionKind
from api_client.contract.turn import Outcome

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


# From counters to figures. Pure: what ``contract.counters`` names is added up as ``stats`` describes it.

#: Durations that are counted: wait, agent, validation, recovery, turn.
DURATIONS = tuple(name.removeprefix("time.") for name in COUNTERS if name.startswith("time."))

_OF_RULES = {"validator", "code", "validator_model"}
#: What a decision on a rejected answer adds to in a ``RuleRow``.
_FOLLOWED = {"retry": "retried", "fallback": "fallback", "escalate": "escalated", "fail": "failed"}
#: What a decision on a phase's attempt adds to in a ``PhaseRow``.
_VERIFIED = {"accept": "passed", "retry": "asked_again", "escalate": "escalated", "fail": "failed"}
_STAGES = {"1": "model", "2": "person"}
#: Counters by model, and what they add to in a ``TurnRow``, as often as this.
_USED = {
    "attempt.ended": ("runs", 1),
    "tokens.input": ("tokens", 1),
    "tokens.output": ("tokens", 1),
    "tokens.failed": ("failed_tokens", 1),
    "cost.all": ("cost_usd", 1e-6),
    "cost.failed": ("failed_cost_usd", 1e-6),
}

#: Counters as (name, labels, value).
Parsed = Sequence[tuple[str, tuple[str, ...], int]]


def stats_of(counters: Mapping[str, int], *, since: float, until: float, by: str = "") -> Stats:
    """The figures in counters, whole or broken down by one of ``stats.BREAKDOWNS``."""
    parsed = [(*parse(name), value) for name, value in counters.items()]
    rows: list[Any] = []
    if by in _OF_RULES:
        rows = sorted(_rule_rows(parsed, by).values(), key=lambda row: (-row.rejected, -row.judged, row.name))
    elif by:
        rows = sorted(_turn_rows(parsed, by).values(), key=lambda row: (-row.turns, -row.runs, row.name))
    outcomes = Counter({outcome.value: 0 for outcome in Outcome})
    for name, labels, value in parsed:
        if name == "turn.finished":
            outcomes[labels[0]] += value
    phases = PhaseRow()
    for decision, count in _by_label(parsed, "phase.judged", _VERIFIED).items():
        setattr(phases, decision, count)
        phases.judged += count
    return Stats(
        since=since,
        until=until,
        by=by,
        total=_turn_rows(parsed, "").get("total", TurnRow(name="total")),
        submitted=counters.get("turn.submitted", 0),
        started=counters.get("delivery.started", 0),
        lost=sum(value for name, _, value in parsed if name == "delivery.lost"),
        handed_over=counters.get("delivery.handed_over", 0),
        rows=tuple(rows),
        durations=durations_of(parsed),
        outcomes=dict(outcomes),
        phases=phases,
        escalated=_by_label(parsed, "turn.escalated", _STAGES),
        decided=_by_label(parsed, "turn.decided", {kind.value: kind.value for kind in DecisionKind}),
    )


def _by_label(parsed: Parsed, counter: str, names: Mapping[str, str]) -> dict[str, int]:
    """A counter of one label, by what its labels are called; 0 for those that were not counted."""
    found = dict.fromkeys(names.values(), 0)
    for name, labels, value in parsed:
        if name == counter and labels[0] in names:
            found[names[labels[0]]] += value
    return found


def _turn_rows(parsed: Parsed, by: str) -> dict[str, TurnRow]:
    """The rows by outcome, model, step, flow or policy; for "" the one row ``total``."""
    rows: dict[str, TurnRow] = {}

    def row(name: str) -> TurnRow:
        return rows.setdefault(name, TurnRow(name=name))

    for name, labels, value in parsed:
        if by == "policy":
            if name == "policy.finished":
                label_values = dict(zip(COUNTERS[name].labels, labels, strict=True))
                add_turns(row(label_values[by]), label_values, value)
        elif name == "turn.finished":
            label_values = dict(zip(COUNTERS[name].labels, labels, strict=True))
            add_turns(row(label_values[by] if by else "total"), label_values, value)
        elif by not in {"", "model"}:
            continue
        elif name == "attempt.judged":
            row(labels[-1] if by else "total").rejected += value * (labels[0] != "accept")
        elif name in _USED:
            attribute, factor = _USED[name]
            used = row(labels[-1] if by else "total")
            setattr(used, attribute, getattr(used, attribute) + value * factor)
    return rows


def _named(name: str, labels: tuple[str, ...]) -> dict[str, str]:
    """The labels of a counter by their names. What an older release counted may have fewer."""
    entry = COUNTERS.get(name)
    return dict(zip(entry.labels, labels, strict=False)) if entry else {}


def add_turns(row: TurnRow, label_values: Mapping[str, str], turns: int) -> None:
    """Add turns that ended with the same ``outcome`` and ``asked_again`` (0 or 1) to a row."""
    outcome = label_values["outcome"]
    row.turns += turns
    row.asked_again += turns * (label_values["asked_again"] == "1")
    row.passed += turns * outcome.startswith("passed")
    row.repaired += turns * (outcome == Outcome.PASSED_BY_FALLBACK)
    row.gave_up += turns * (outcome in {Outcome.FAILED, Outcome.REFUSED})
    row.cancelled += turns * (outcome == Outcome.CANCELLED)
    row.errors += turns * (outcome in {Outcome.INCOMPLETE, Outcome.ERROR, Outcome.EXPIRED, Outcome.DEAD})


def _rule_rows(parsed: Parsed, by: str, names: Iterable[str] = ()) -> dict[str, RuleRow]:
    """The rows by validator or code, or by validator and model; those of ``names`` in any case."""
    each_model, of = by == "validator_model", by.partition("_")[0]
    rows = {name: RuleRow(name=name) for name in names}
    answers = verified = 0
    for name, labels, value in parsed:
        if name == "attempt.judged":
            answers += value
        verified += value * (name == "phase.judged")
        if not name.startswith(f"{of}.") or (each_model and name == "validator.gave_up"):
            continue  # that a turn was given up is not counted by model
        called = f"{labels[0]} / {labels[-1]}" if each_model else labels[0]
        row = rows.setdefault(called, RuleRow(name=called))
        if name == f"{of}.judged":
            row.judged += value
        elif name == f"{of}.rejected":
            row.rejected += value
            attribute = _FOLLOWED[labels[1]]
            setattr(row, attribute, getattr(row, attribute) + value)
        elif name == f"{of}.gave_up":
            row.gave_up += value
    for row in rows.values():
        # Gates and verifiers are not counted one by one: a phase's output is verified by all of them.
        verified_by_it = verified if row.rejected else 0
        row.judged = (row.judged or verified_by_it) if of == "validator" else answers
    return rows


def durations_of(parsed: Parsed) -> tuple[Duration, ...]:
    """Every duration, over all its labels."""
    sums: Counter[str] = Counter()
    buckets: dict[str, Counter[str]] = {name: Counter() for name in DURATIONS}
    for name, labels, value in parsed:
        if not name.startswith("time."):
            continue
        duration, _, kind = name.removeprefix("time.").rpartition(".")
        if kind == "ms":
            sums[duration] += value
        else:
            buckets[duration][labels[-1]] += value
    return tuple(
        Duration(
            name=name,
            count=buckets[name].total(),
            seconds=sums[name] / 1000,
            buckets=tuple((seconds_of(bound), buckets[name][bound]) for bound in BOUNDS),
        )
        for name in DURATIONS
    )


#: The bounds as labels.
BOUNDS = (*map(str, BOUNDS_MS), BEYOND)


def seconds_of(bound: str) -> float:
    """A bucket's upper bound in seconds."""
    return math.inf if bound == BEYOND else int(bound) / 1000


def retry_rate_of(
    counters: Mapping[str, int],
    *,
    since_seconds: float,
    start: float = 0.0,
    by: str = "",
    model: str = "",
    sessions: Sequence[Share] = (),
    names: Collection[str] = (),
) -> RetryRate:
    """Return how often agents were asked again, those of one ``model`` alone if it is named.

    ``sessions`` are the rows where it is by session.
    Validators and codes that rejected nothing have no row, but for ``names``: in a piece of a longer time, nothing
    rejected is something to know.
    """
    parsed = [(*parse(name), value) for name, value in counters.items()]
    if model:
        parsed = [each for each in parsed if _named(each[0], each[1]).get("model") == label(model)]
    total = _turn_rows(parsed, "").get("total", TurnRow(name="total"))
    rows: Sequence[Share] = sessions
    if by in _OF_RULES:
        known = _rule_rows(parsed, by, names)
        found = [row for row in known.values() if row.rejected or row.name in names]
        rows = [Share(name=row.name, rejected=row.rejected, validated=row.judged) for row in found]
    elif by and by != "session":
        turns = [row for row in _turn_rows(parsed, by).values() if row.turns]
        rows = [Share(name=row.name, rejected=row.asked_again, validated=row.turns) for row in turns]
    rows = sorted(rows, key=lambda row: (-row.rejected, row.name))
    return RetryRate(
        start=start, since_seconds=since_seconds, turns=total.turns, retried=total.asked_again, rows=tuple(rows)
    )
