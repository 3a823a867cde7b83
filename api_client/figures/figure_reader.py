"""Reads the counters of turns from the store, chooses the buckets and adds them up."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from api_client.contract.counters import parse_field, read_pending
from api_client.contract.keys import BUCKETS
from api_client.figures.figures import _DAY, _WEEK_DAYS, SPANS, Figures
from api_client.figures.rollup import compute_retry_rate, compute_stats
from api_client.figures.statistics import (
    BREAKDOWNS,
    RETRY_BREAKDOWNS,
    RetryRate,
    RuleRow,
    Slice,
    Stats,
    TurnRow,
)
from api_client.figures.tally import ACCOUNTS, TurnTally
from api_client.store import Store

Bucket = tuple[str, float]
Pending = tuple[float, dict[str, int]]

#: Most sections of a time series: a month by the hour, a day by the minute.
MOST_PIECES = 1500


def choose_buckets(since: float, until: float, now: float, lives: dict[str, float]) -> list[Bucket]:
    """Choose the fewest counter buckets that cover a period (seconds since the epoch). Return each as (size, start).

    Minutes older than ``lives`` allows are replaced by their hours. A period that ends now includes the bucket still
    being filled.
    """
    if now - until > lives["minute"]:
        hour = BUCKETS["hour"]
        since, until = round(since / hour) * hour, round(until / hour) * hour - 1
    ends = math.inf if until // 60 == now // 60 else until + 1
    chosen: list[Bucket] = []
    at = since // 60 * 60
    while at <= until:
        for size in ("day", "hour", "minute"):
            seconds = BUCKETS[size]
            if (at % seconds == 0 and at + seconds <= ends) or size == "minute":
                if size == "minute" and now - at > lives["minute"]:
                    size, seconds = "hour", BUCKETS["hour"]
                    at = at // seconds * seconds
                chosen.append((size, at))
                at += seconds
                break
    return chosen


async def read_buckets(store: Store, wanted: Sequence[Bucket]) -> list[Counter[str]]:
    """Return the counters of each given bucket, including pending counter updates."""
    found, pending, _ = await _read_hashes(store, [store.keys.bucket_key(size, at) for size, at in wanted])
    for at, counted in pending:
        for place, (size, start) in enumerate(wanted):
            if start <= at < start + BUCKETS[size]:
                found[place].update(counted)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnBalance:
    """The counts of acknowledged, finished and unfinished turns, which reveal lost turns."""

    acknowledged: int
    ended: int
    going_on: int

    @property
    def lost(self) -> int:
        """Return the number of acknowledged turns that neither ended nor are in progress."""
        return max(0, self.acknowledged - self.ended - self.going_on)


async def _read_hashes(store: Store, names: Sequence[str]) -> tuple[list[Counter[str]], list[Pending], int]:
    """Return the counters in these hashes, the pending updates, and how many turns are in progress, of one moment."""
    pipe = store.redis.pipeline(transaction=True)
    pipe.lrange(store.keys.pending, 0, -1)
    pipe.zcard(store.keys.due)
    for name in names:
        pipe.hgetall(name)
    waiting, going_on, *found = await store.await_reply(pipe.execute())
    counted = [Counter({field.decode(): int(value) for field, value in stored.items()}) for stored in found]
    return counted, list(map(read_pending, waiting)), going_on


def _add_counters(read: Iterable[Mapping[str, int]]) -> Counter[str]:
    total: Counter[str] = Counter()
    for found in read:
        total.update(found)
    return total


async def read_counters(store: Store, since: float, until: float) -> Counter[str]:
    """Return the sums of all counters over a period (seconds since the epoch)."""
    wanted = choose_buckets(since, until, time.time(), store.settings.bucket_lives)
    return _add_counters(await read_buckets(store, wanted))


async def _read_sections(
    store: Store, since: float, until: float, every: str, rate_of: Callable[..., RetryRate]
) -> RetryRate:
    step = BUCKETS[every]
    starts = range(int(since) // step * step, int(until) + 1, step)
    read = await read_buckets(store, [(every, at) for at in starts])
    start = float(starts[0])
    whole = rate_of(_add_counters(read), since_seconds=until - start, start=start)
    names = {row.name for row in whole.rows}
    pieces = [
        rate_of(found, since_seconds=step, start=float(at), names=names) for at, found in zip(starts, read, strict=True)
    ]
    return replace(whole, pieces=tuple(pieces))


class FigureReader:
    """Reads statistics about turns from the store's counters. Methods raise ``StoreUnavailable``."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._tally = TurnTally(store)

    async def count_pending(self) -> int:
        """Return the number of counter updates that are stored but not yet added to the totals."""
        return int(await self._store.send_command("LLEN", self._store.keys.pending))

    async def read_retry_rate(self, since_seconds: float, by: str = "", every: str = "", model: str = "") -> RetryRate:
        """Return the share of turns in a period whose agent had to run again, in total and broken down by ``by``.

        ``every`` (minute, hour, day) cuts the period into sections. Raises ``ValueError`` for unknown or too many
        sections, and for combinations that are not counted.
        """
        if by not in {"", *RETRY_BREAKDOWNS}:
            raise ValueError(f"by must be one of {', '.join(RETRY_BREAKDOWNS)}, not {by[:80]!r}")
        if model and by in {"code", "session"}:
            raise ValueError(f"model does not go with by {by}: it is not counted by model")
        now, rate_of = time.time(), partial(compute_retry_rate, by=by, model=model)
        if every:
            if every not in BUCKETS:
                raise ValueError(f"every must be one of {', '.join(BUCKETS)}, not {every[:80]!r}")
            if by == "session":
                raise ValueError("every does not go with by session: sessions have no counters")
            if since_seconds > (life := self._store.settings.bucket_lives[every]):
                raise ValueError(f"what happened by the {every} is kept for {life:.0f} s only")
            if since_seconds > MOST_PIECES * BUCKETS[every]:
                raise ValueError(f"more than {MOST_PIECES} pieces: take a larger one than the {every}")
            return await _read_sections(self._store, now - since_seconds, now, every, rate_of)
        found = await read_counters(self._store, now - since_seconds, now)
        rows = await self._tally.list_sessions(now - since_seconds, now) if by == "session" else ()
        return rate_of(found, since_seconds=since_seconds, start=now - since_seconds, sessions=rows)

    async def read_stats(self, since_seconds: float, by: str = "", *, ago_seconds: float = 0) -> Stats:
        """Return the statistics of a period of ``since_seconds`` that ended ``ago_seconds`` ago, broken down by ``by``.

        Raises ``ValueError`` if ``by`` is not one of ``BREAKDOWNS``.
        """
        if by not in {"", *BREAKDOWNS}:
            raise ValueError(f"by must be one of {', '.join(BREAKDOWNS)}, not {by[:80]!r}")
        until = time.time() - ago_seconds
        found = await read_counters(self._store, until - since_seconds, until)
        if by in ACCOUNTS:
            rows = await self._tally.list_accounts(until - since_seconds, until, by)
            return replace(compute_stats(found, since=until - since_seconds, until=until), by=by, rows=rows)
        return compute_stats(found, since=until - since_seconds, until=until, by=by)

    async def read_totals(self) -> Mapping[str, int]:
        """Return the value of every counter since the installation began, including pending updates."""
        return (await self._read_totals())[0]

    async def read_balance(self) -> TurnBalance:
        """Return how many turns were acknowledged in total, how many have ended, and how many are in progress."""
        total, going_on = await self._read_totals()
        counted: Counter[str] = Counter()
        for name, value in total.items():
            counted[parse_field(name)[0]] += value
        return TurnBalance(acknowledged=counted["turn.submitted"], ended=counted["turn.finished"], going_on=going_on)

    async def _read_totals(self) -> tuple[Counter[str], int]:
        stored, pending, going_on = await _read_hashes(self._store, [self._store.keys.totals])
        return _add_counters([*stored, *(counted for _, counted in pending)]), going_on

    async def read_span(self, span: str) -> Figures:
        """Return the statistics of a period, in total and in sections. ``span`` is a key of ``SPANS``."""
        seconds, size = SPANS[span]
        step = BUCKETS[size]
        last = int(time.time()) // step * step
        starts = range(last - seconds + step, last + 1, step)
        read = await read_buckets(self._store, [(size, at) for at in starts])
        total = _add_counters(read)
        since, until = float(starts[0]), float(last + step)
        against = max(_WEEK_DAYS, seconds // _DAY)
        then, now = since - against * _DAY, time.time() - against * _DAY
        before = await read_counters(self._store, then, now)
        codes, models, each = (
            compute_stats(total, since=since, until=until, by=by).rows for by in ("code", "model", "validator_model")
        )
        return Figures(
            span=span,
            pieces=tuple(
                Slice(start=at, seconds=step, stats=compute_stats(piece, since=at, until=at + step, by="validator"))
                for at, piece in zip(starts, read, strict=True)
            ),
            whole=compute_stats(total, since=since, until=until, by="validator"),
            codes=tuple(row for row in codes if isinstance(row, RuleRow) and row.rejected),
            models=tuple(
                sorted(
                    (row for row in models if isinstance(row, TurnRow)),
                    key=lambda row: (-row.failed_cost_usd, -row.failed_tokens, -row.turns),
                )
            ),
            rules_by_model={row.name.partition(" / ")[::2]: row for row in each if isinstance(row, RuleRow)},
            earlier=compute_stats(before, since=then, until=now, by="validator"),
            against=against,
        )
