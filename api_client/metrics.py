"""Reading the counters that every change of a turn adds to (DESIGN section 3): how often agents are asked again.

Counters are written by the same Lua command that changes the turn, so they cannot disagree with the turns.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from api_client.contract.keys import BUCKETS, Keys
from api_client.contract.settings import Settings

if TYPE_CHECKING:
    from redis.asyncio import Redis

#: counter prefix of each breakdown: rejected attempts per name, and what they are divided by.
_BREAKDOWNS = {"validator": "rejected.validator.", "code": "rejected.code."}


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """One line of a breakdown: ``rejected`` of ``validated`` (attempts, or turns when by session)."""

    name: str
    rejected: int
    validated: int

    @property
    def rate(self) -> float | None:
        """0 to 1; None when nothing was counted."""
        return self.rejected / self.validated if self.validated else None


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryRate:
    """How often agents had to be asked again.

    ``rate`` is turns with at least one validation retry ÷ finished turns; in ``rows``, by validator or code, it is
    rejected attempts ÷ validated attempts, and by session it is turns again. Deliveries lost to crashes do not count.
    """

    since_seconds: float
    turns: int
    retried: int
    rows: tuple[Share, ...] = ()

    @property
    def rate(self) -> float | None:
        """0 to 1; None when no turn finished in that time."""
        return self.retried / self.turns if self.turns else None

    def to_dict(self) -> dict[str, Any]:
        """The figures as a JSON-ready mapping."""
        rows = [{**asdict(row), "rate": row.rate} for row in self.rows]
        return {
            "since_seconds": self.since_seconds,
            "turns": self.turns,
            "retried": self.retried,
            "rate": self.rate,
            "rows": rows,
        }


def buckets_since(since: float, now: float) -> list[tuple[str, float]]:
    """The fewest buckets that cover ``since`` to ``now`` (seconds since the epoch), as (size, start).

    Whole hours and days are read as such and the ends minute by minute, so that a month costs about as much as an hour.
    Minutes older than they are kept are read as the hours that contain them.
    """
    chosen: list[tuple[str, float]] = []
    at = since // 60 * 60
    while at <= now:
        for size in ("day", "hour", "minute"):
            seconds, _ = BUCKETS[size]
            expired = size == "minute" and now - at > BUCKETS["minute"][1]
            if (at % seconds == 0 and at + seconds <= now) or size == "minute":
                if expired:
                    size, seconds = "hour", BUCKETS["hour"][0]
                    at = at // seconds * seconds
                chosen.append((size, at))
                at += seconds
                break
    return chosen


async def counters(redis: Redis, settings: Settings, since_seconds: float) -> Counter[str]:
    """All counters of the last ``since_seconds``, over all shards."""
    now = time.time()
    wanted = buckets_since(now - since_seconds, now)
    total: Counter[str] = Counter()
    pipe = redis.pipeline(transaction=False)
    for shard in range(settings.shards):
        for size, at in wanted:
            pipe.hgetall(Keys(settings.namespace, shard).bucket(size, at))
    for found in await pipe.execute():
        total.update({name.decode(): int(value) for name, value in found.items()})
    return total


async def retry_rate(redis: Redis, settings: Settings, since_seconds: float, by: str = "") -> RetryRate:
    """The retry rate of the last ``since_seconds``, whole or by validator, code or session.

    Raises:
        ValueError: ``by`` is none of these.
    """
    if by not in {"", "session", *_BREAKDOWNS}:
        raise ValueError(f"by must be validator, code or session, not {by[:80]!r}")
    found = await counters(redis, settings, since_seconds)
    rows: Iterable[Share] = ()
    if by == "session":
        rows = await _by_session(redis, settings, since_seconds)
    elif by:
        prefix, validated = _BREAKDOWNS[by], found["attempt.validated"]
        rows = [
            Share(
                name=name.removeprefix(prefix),
                rejected=count,
                validated=found[f"validated.validator.{name.removeprefix(prefix)}"] if by == "validator" else validated,
            )
            for name, count in found.items()
            if name.startswith(prefix)
        ]
    return RetryRate(
        since_seconds=since_seconds,
        turns=found["turn.finished"],
        retried=found["turn.retried"],
        rows=tuple(sorted(rows, key=lambda row: (-row.rejected, row.name))),
    )


async def _by_session(redis: Redis, settings: Settings, since_seconds: float) -> list[Share]:
    """Sessions are too many for counters; their finished turns' records tell."""
    turns: Counter[str] = Counter()
    retried: Counter[str] = Counter()
    for shard in range(settings.shards):
        keys = Keys(settings.namespace, shard)
        since_ms = int((time.time() - since_seconds) * 1000)
        found: list[Any] = await redis.zrangebyscore(keys.finished, since_ms, "+inf")
        pipe = redis.pipeline(transaction=False)
        for turn_id in found:
            pipe.hmget(keys.turn(turn_id.decode()), "session_id", "retries")
        for session, retries in await pipe.execute():
            if session is not None:
                turns[session.decode()] += 1
                retried[session.decode()] += int(retries or 0) > 0
    return [Share(name=name, rejected=retried[name], validated=count) for name, count in turns.items()]
