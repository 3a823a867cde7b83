"""Figures as a part of the client; those of a span of time, whole and in equal pieces, are for an overview."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from api_client.contract.keys import BUCKETS
from api_client.figures import metrics
from api_client.figures.stats import RetryRate, RuleRow, Slice, Stats, TurnRow, stats_of
from api_client.store import Store

#: Spans that can be looked at: name -> (seconds, size of the pieces).
SPANS = {"1h": (3600, "minute"), "24h": (86_400, "hour"), "7d": (7 * 86_400, "hour"), "30d": (30 * 86_400, "day")}
_DAY, _WEEK_DAYS = 86_400, 7


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """The figures of a span (a key of ``SPANS``).

    Attributes:
        pieces: the span in equal pieces, by validator, oldest first; the last is the present one.
        whole: all of them together, by validator. codes, models: the same, broken down otherwise; the model whose
            failed attempts cost most first. rules_by_model: by (rule, model).
        earlier: as ``whole``, of the same time ``against`` days earlier.
    """

    span: str
    pieces: tuple[Slice, ...]
    whole: Stats
    codes: tuple[RuleRow, ...]
    models: tuple[TurnRow, ...]
    rules_by_model: Mapping[tuple[str, str], RuleRow]
    earlier: Stats
    against: int

    @property
    def rules(self) -> tuple[RuleRow, ...]:
        """The validators that judged anything, those that rejected most first."""
        return tuple(row for row in self.whole.rows if isinstance(row, RuleRow))

    def earlier_rate(self, rule: str) -> float | None:
        """Return what share of answers this validator rejected earlier; None when it judged none."""
        return next((row.rate for row in self.earlier.rows if isinstance(row, RuleRow) and row.name == rule), None)

    @property
    def outcomes(self) -> dict[str, int]:
        """Finished turns by outcome, the successful first; without those that did not occur."""
        return {outcome: count for outcome, count in self.whole.outcomes.items() if count}

    def to_dict(self) -> dict[str, Any]:
        """The figures as a JSON-ready mapping."""
        return {
            **self.whole.to_dict(),
            "span": self.span,
            "codes": [row.to_dict() for row in self.codes],
            "models": [row.to_dict() for row in self.models],
            "earlier": {**self.earlier.to_dict(), "against_days": self.against},
        }


async def read_figures(store: Store, span: str) -> Figures:
    """Read them.

    Raises:
        KeyError: there is no such span.
    """
    seconds, size = SPANS[span]
    step = BUCKETS[size]
    last = int(time.time()) // step * step
    starts = range(last - seconds + step, last + 1, step)
    read = await metrics.read_buckets(store, [(size, at) for at in starts])
    total: Counter[str] = Counter()
    for counters in read:
        total.update(counters)
    since, until = float(starts[0]), float(last + step)
    # The same days of the week: what people ask differs by them.
    against = max(_WEEK_DAYS, seconds // _DAY)
    then, now = since - against * _DAY, time.time() - against * _DAY
    before = await metrics.counters(store, then, now)
    codes, models, each = (
        stats_of(total, since=since, until=until, by=by).rows for by in ("code", "model", "validator_model")
    )
    return Figures(
        span=span,
        pieces=tuple(
            Slice(start=at, seconds=step, stats=stats_of(counters, since=at, until=at + step, by="validator"))
            for at, counters in zip(starts, read, strict=True)
        ),
        whole=stats_of(total, since=since, until=until, by="validator"),
        codes=tuple(row for row in codes if isinstance(row, RuleRow) and row.rejected),
        models=tuple(sorted((row for row in models if isinstance(row, TurnRow)), key=_failed_most)),
        rules_by_model={_rule_and_model(row): row for row in each if isinstance(row, RuleRow)},
        earlier=stats_of(before, since=then, until=now, by="validator"),
        against=against,
    )


def _rule_and_model(row: RuleRow) -> tuple[str, str]:
    rule, _, model = row.name.partition(" / ")
    return rule, model


def _failed_most(row: TurnRow) -> tuple[float, int, int]:
    return (-row.failed_cost_usd, -row.failed_tokens, -row.turns)


class FigureReader:
    """Reads what was counted. Every method raises ``StoreUnavailable`` when the store does not answer."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def retry_rate(self, since_seconds: float, by: str = "", every: str = "", model: str = "") -> RetryRate:
        """Return how often agents were asked again in the last ``since_seconds``. As ``metrics.retry_rate``."""
        found = metrics.retry_rate(self._store, since_seconds, by, every, model)
        rate: RetryRate = await self._store.ask(found)
        return rate

    async def stats(self, since_seconds: float, by: str = "", *, ago_seconds: float = 0) -> Stats:
        """The figures of a span of ``since_seconds`` that ended ``ago_seconds`` ago, whole or broken down.

        Raises:
            ValueError: ``by`` is not in ``stats.BREAKDOWNS``.
        """
        found: Stats = await self._store.ask(metrics.stats(self._store, since_seconds, by, ago_seconds))
        return found

    async def totals(self) -> Mapping[str, int]:
        """Every counter since the beginning (``contract/counters.py``)."""
        found: Mapping[str, int] = await self._store.ask(metrics.totals(self._store))
        return found

    async def account(self) -> metrics.Account:
        """Return what became of every turn that was ever acknowledged."""
        found: metrics.Account = await self._store.ask(metrics.account(self._store))
        return found

    async def over(self, span: str) -> Figures:
        """The figures of a span of ``figures.SPANS``, whole and over time."""
        found: Figures = await self._store.ask(read_figures(self._store, span))
        return found


# Spans of time as people write them: 90s, 30m, 24h, 7d, 2w.

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


def seconds_of(text: str) -> float:
    """A span in seconds.

    Raises:
        ValueError: not a span; the message says how one is written.
    """
    match = re.fullmatch(r"([0-9]{1,6}(?:\.[0-9]{1,3})?)([smhdw])", text.strip())
    if not match or float(match[1]) == 0:
        raise ValueError(f"{text[:80]!r} is not a span of time: write 90s, 30m, 1h, 7d or 2w")
    return float(match[1]) * _UNITS[match[2]]
