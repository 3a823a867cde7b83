"""Computes statistics from counters, without reading anything."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from api_client.contract.counters import BEYOND, BOUNDS_MS, COUNTERS, clean_label, parse_field
from api_client.contract.turn import Outcome
from api_client.contract.turn_labels import OWN_COUNTERS
from api_client.figures.statistics import (
    REACTIONS,
    Duration,
    PhaseRow,
    RetryRate,
    RetryShare,
    RuleRow,
    Stats,
    TurnRow,
)

#: Counted durations: wait, agent, validation, recovery, turn.
DURATIONS = tuple(name.removeprefix("time.") for name in COUNTERS if name.startswith("time."))

_OF_RULES = {"validator", "code", "validator_model"}
#: Decision on a rejected answer -> field of ``RuleRow``.
_FOLLOWED = {"retry": "retried", "fallback": "fallback", "fail": "failed"}
#: Decision on a phase's attempt -> field of ``PhaseRow``.
_VERIFIED = {"accept": "passed", "retry": "asked_again", "fail": "failed"}
#: Counter by model -> field of ``TurnRow`` and factor.
_USED = {
    "attempt.ended": ("runs", 1),
    "tokens.input": ("tokens", 1),
    "tokens.output": ("tokens", 1),
    "tokens.failed": ("failed_tokens", 1),
    "cost.all": ("cost_usd", 1e-6),
    "cost.failed": ("failed_cost_usd", 1e-6),
}

Parsed = Sequence[tuple[str, tuple[str, ...], int]]


def compute_stats(counters: Mapping[str, int], *, since: float, until: float, by: str = "") -> Stats:
    """Compute statistics from counters, in total and broken down by one of ``BREAKDOWNS``."""
    parsed = [(*parse_field(name), value) for name, value in counters.items()]
    rows: list[Any] = []
    if by in _OF_RULES:
        rows = sorted(_make_rule_rows(parsed, by).values(), key=lambda row: (-row.rejected, -row.validated, row.name))
    elif by:
        rows = sorted(_make_turn_rows(parsed, by).values(), key=lambda row: (-row.turns, -row.runs, row.name))
    outcomes = Counter({outcome.value: 0 for outcome in Outcome})
    for name, labels, value in parsed:
        if name == "turn.finished":
            outcomes[labels[0]] += value
    phases = PhaseRow()
    taken_over = {decision: name for decision, (name, _) in REACTIONS.items()}
    for name, count in _sum_by_label(parsed, "phase.judged", _VERIFIED | taken_over).items():
        _add_reaction(phases, name, count)
        phases.verified += count
    return Stats(
        since=since,
        until=until,
        by=by,
        total=_make_turn_rows(parsed, "").get("total", TurnRow(name="total")),
        submitted=counters.get("turn.submitted", 0),
        started=counters.get("delivery.started", 0),
        lost=sum(value for name, _, value in parsed if name == "delivery.lost"),
        handed_over=counters.get("delivery.handed_over", 0),
        rows=tuple(rows),
        durations=collect_durations(parsed),
        outcomes=dict(outcomes),
        phases=phases,
        others={
            each.figure: _sum_by_label(parsed, name, each.figure_names)
            for name, each in COUNTERS.items()
            if each.figure
        },
    )


def _sum_by_label(parsed: Parsed, counter: str, names: Mapping[str, str]) -> dict[str, int]:
    found = dict.fromkeys(names.values(), 0)
    for name, labels, value in parsed:
        if name == counter and labels[0] in names:
            found[names[labels[0]]] += value
    return found


def _make_turn_rows(parsed: Parsed, by: str) -> dict[str, TurnRow]:
    rows: dict[str, TurnRow] = {}

    def get_row(name: str) -> TurnRow:
        return rows.setdefault(name, TurnRow(name=name))

    for name, labels, value in parsed:
        if by in OWN_COUNTERS:
            if name == OWN_COUNTERS[by]:
                label_values = dict(zip(COUNTERS[name].labels, labels, strict=True))
                add_turns(get_row(label_values[by]), label_values, value)
        elif name == "turn.finished":
            label_values = dict(zip(COUNTERS[name].labels, labels, strict=True))
            add_turns(get_row(label_values[by] if by else "total"), label_values, value)
        elif by not in {"", "model"}:
            continue
        elif name == "attempt.judged":
            get_row(labels[-1] if by else "total").rejected += value * (labels[0] != "accept")
        elif name in _USED:
            attribute, factor = _USED[name]
            used = get_row(labels[-1] if by else "total")
            setattr(used, attribute, getattr(used, attribute) + value * factor)
    return rows


def _name_labels(name: str, labels: tuple[str, ...]) -> dict[str, str]:
    entry = COUNTERS.get(name)
    return dict(zip(entry.labels, labels, strict=False)) if entry else {}


def add_turns(row: TurnRow, label_values: Mapping[str, str], turns: int) -> None:
    """Add turns with the same outcome to a row of statistics."""
    outcome = label_values["outcome"]
    row.turns += turns
    row.asked_again += turns * (label_values["asked_again"] == "1")
    row.passed += turns * outcome.startswith("passed")
    row.repaired += turns * (outcome == Outcome.PASSED_BY_FALLBACK)
    row.gave_up += turns * (outcome in {Outcome.FAILED, Outcome.REFUSED})
    row.cancelled += turns * (outcome == Outcome.CANCELLED)
    row.errors += turns * (outcome in {Outcome.INCOMPLETE, Outcome.ERROR, Outcome.EXPIRED, Outcome.DEAD})


def _make_rule_rows(parsed: Parsed, by: str, names: Iterable[str] = ()) -> dict[str, RuleRow]:
    each_model, of = by == "validator_model", by.partition("_")[0]
    rows = {name: RuleRow(name=name) for name in names}
    answers = verified = 0
    for name, labels, value in parsed:
        if name == "attempt.judged":
            answers += value
        verified += value * (name == "phase.judged")
        if not name.startswith(f"{of}.") or (each_model and name == "validator.gave_up"):
            continue  # give-ups are not counted by model
        called = f"{labels[0]} / {labels[-1]}" if each_model else labels[0]
        row = rows.setdefault(called, RuleRow(name=called))
        if name == f"{of}.judged":
            row.validated += value
        elif name == f"{of}.rejected":
            row.rejected += value
            _add_reaction(row, _FOLLOWED.get(labels[1]) or REACTIONS[labels[1]][0], value)
        elif name == f"{of}.gave_up":
            row.gave_up += value
    for row in rows.values():
        # Gates and verifiers are not counted singly: all of them verify each output of a phase.
        verified_by_it = verified if row.rejected else 0
        row.validated = (row.validated or verified_by_it) if of == "validator" else answers
    return rows


def _add_reaction(row: RuleRow | PhaseRow, name: str, count: int) -> None:
    if name in row.others:
        row.others[name] += count
    else:
        setattr(row, name, getattr(row, name) + count)


def collect_durations(parsed: Parsed) -> tuple[Duration, ...]:
    """Return the histogram of every measured duration, summed over all labels."""
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
            buckets=tuple(
                (math.inf if bound == BEYOND else int(bound) / 1000, buckets[name][bound]) for bound in BOUNDS
            ),
        )
        for name in DURATIONS
    )


BOUNDS = (*map(str, BOUNDS_MS), BEYOND)


def compute_retry_rate(
    counters: Mapping[str, int],
    *,
    since_seconds: float,
    start: float = 0.0,
    by: str = "",
    model: str = "",
    sessions: Sequence[RetryShare] = (),
    names: Collection[str] = (),
) -> RetryRate:
    """Compute from counters the share of turns whose agent had to run again after a rejected answer.

    ``sessions`` are the rows if broken down by session. Rows without rejections are omitted, except those of ``names``.
    """
    parsed = [(*parse_field(name), value) for name, value in counters.items()]
    if model:
        parsed = [each for each in parsed if _name_labels(each[0], each[1]).get("model") == clean_label(model)]
    total = _make_turn_rows(parsed, "").get("total", TurnRow(name="total"))
    rows: Sequence[RetryShare] = sessions
    if by in _OF_RULES:
        known = _make_rule_rows(parsed, by, names)
        found = [row for row in known.values() if row.rejected or row.name in names]
        rows = [RetryShare(name=row.name, rejected=row.rejected, validated=row.validated) for row in found]
    elif by and by != "session":
        turns = [row for row in _make_turn_rows(parsed, by).values() if row.turns]
        rows = [RetryShare(name=row.name, rejected=row.asked_again, validated=row.turns) for row in turns]
    rows = sorted(rows, key=lambda row: (-row.rejected, row.name))
    return RetryRate(
        start=start, since_seconds=since_seconds, turns=total.turns, retried=total.asked_again, rows=tuple(rows)
    )
