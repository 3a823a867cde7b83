"""Compares two flow versions: rates and means with confidence intervals, and tests of their differences.

The session is the unit (ADR-034, A/B). Rates are ratios of sums over sessions with the variance of the linearised ratio
(Cochran, Sampling Techniques, 6.4); tests are corrected by Bonferroni.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

from api_client.contract.turn import Outcome

#: Fewest sessions of each version for a conclusion.
FEWEST = 30
#: Probability of calling two equal versions different.
ERROR_RATE = 0.05
_NORMAL = NormalDist()


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedTurn:
    """The data of a finished turn that a comparison of flow versions needs: result, duration, cost in US dollars."""

    session_id: str
    flow: str
    outcome: Outcome
    asked_again: bool
    seconds: float
    usd: float


#: Compared figures: value of one turn by name. Cancelled turns do not count.
FIGURES: dict[str, Callable[[FinishedTurn], float]] = {
    "retry": lambda turn: float(turn.asked_again),
    "fallback": lambda turn: float(turn.outcome is Outcome.PASSED_BY_FALLBACK),
    "failure": lambda turn: float(not turn.outcome.success),
    "seconds": lambda turn: turn.seconds,
    "usd": lambda turn: turn.usd,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredFigure:
    """A rate or mean of one flow version, with its 95 % confidence interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureDifference:
    """The change of a metric from one flow version to another. ``real`` is True if it is statistically significant."""

    name: str
    old: MeasuredFigure
    new: MeasuredFigure
    change: MeasuredFigure
    p: float
    real: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionComparison:
    """The result of comparing two flow versions. ``enough`` is True if both have enough sessions."""

    old: str
    new: str
    sessions: tuple[int, int]
    turns: tuple[int, int]
    enough: bool
    figures: tuple[FigureDifference, ...]


#: Number of turns and sum of a figure, by session.
_Sums = Mapping[str, tuple[int, float]]


def compare_versions(turns: Iterable[FinishedTurn], old: str, new: str) -> VersionComparison:
    """Compare two flow versions by their finished turns. Cancelled turns are left out."""
    kept: dict[str, list[FinishedTurn]] = {old: [], new: []}
    for turn in turns:
        if turn.flow in kept and turn.outcome is not Outcome.CANCELLED:
            kept[turn.flow].append(turn)
    sessions = [len({turn.session_id for turn in kept[flow]}) for flow in (old, new)]
    enough = min(sessions) >= FEWEST
    found = []
    for name, value in FIGURES.items():
        sums = [_sum_by_session(kept[flow], value) for flow in (old, new)]
        found.append(_test_difference(name, sums[0], sums[1], enough=enough))
    return VersionComparison(
        old=old,
        new=new,
        sessions=(sessions[0], sessions[1]),
        turns=(len(kept[old]), len(kept[new])),
        enough=enough,
        figures=tuple(found),
    )


def _sum_by_session(turns: Iterable[FinishedTurn], value: Any) -> _Sums:
    found: dict[str, list[float]] = defaultdict(lambda: [0, 0.0])
    for turn in turns:
        sums = found[turn.session_id]
        sums[0] += 1
        sums[1] += value(turn)
    return {session: (int(count), total) for session, (count, total) in found.items()}


def _test_difference(name: str, old: _Sums, new: _Sums, *, enough: bool) -> FigureDifference:
    before, after = _ratio(old), _ratio(new)
    spread_before, spread_after = _variance(old, before), _variance(new, after)
    pooled = _ratio({**{f"old {key}": value for key, value in old.items()}, **new})
    spread = math.sqrt(_variance(old, pooled) + _variance(new, pooled))
    change = after - before
    p = 2 * (1 - _NORMAL.cdf(abs(change) / spread)) if spread else 1.0
    return FigureDifference(
        name=name,
        old=_confidence_interval(before, spread_before),
        new=_confidence_interval(after, spread_after),
        change=_confidence_interval(change, spread_before + spread_after),
        p=p,
        real=enough and p < ERROR_RATE / len(FIGURES),
    )


def _ratio(sums: _Sums) -> float:
    turns = sum(count for count, _ in sums.values())
    return sum(total for _, total in sums.values()) / turns if turns else 0.0


def _variance(sums: _Sums, ratio: float) -> float:
    """Return the variance of a mean per turn, computed over sessions because turns of a session are correlated."""
    sessions, turns = len(sums), sum(count for count, _ in sums.values())
    if sessions < 2:
        return 0.0
    squares = sum((total - ratio * count) ** 2 for count, total in sums.values())
    return squares * sessions / (sessions - 1) / turns**2


def _confidence_interval(value: float, variance: float) -> MeasuredFigure:
    reach = _NORMAL.inv_cdf(0.975) * math.sqrt(variance)
    return MeasuredFigure(value=value, low=value - reach, high=value + reach)
