"""What is stuck: the one answer that ``turns doctor``, the overview, ``turns top``, /readyz and /metrics give."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from api_client.contract.errors import StoreUnavailable
from api_client.contract.tasks import QUEUES
from api_client.contract.values.worker_reports import WorkerReport
from api_client.contract.words.store_refusals import Refusal
from api_client.store import Store
from api_client.workers.alerts import Alert, Fleet, alerts, fleet_of, stuck
from api_client.workers.probe import Prober
from api_client.workers.reports import ended_workers, reported_workers
from api_client.workers.roster import WorkerLine, roster
from api_client.workers.waiting import FIELDS, Row, Waiting, row, waiting

#: Unfinished turns that are looked at, at most, and how many at once.
LOOK_AT_MOST, _BATCH = 20_000, 1000
#: Reapers forgot a turn that is due for longer than this, in seconds.
_OVERDUE_SECONDS = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """An installation at one moment. Times in seconds since the epoch.

    Attributes:
        at: when, by the store's clock.
        refusal: what the store refuses; None while it takes writes.
        workers: the worker processes of the last day, each with what it does.
        reports: the last one of each worker process. fleet: those that reported just now.
        states: unfinished turns by state, of the first ``LOOK_AT_MOST``; unfinished: how many there are.
        waiting: turns that a worker could take now, longest waiting first.
        stuck: those of them that wait though a slot is free and nobody takes anything.
        parked_since: since when the longest parked turn waits for a person; 0: none.
        overdue: turns that were due long ago and that nobody looked at. dead: dead letters.
        alerts: what keeps turns from going on, causes first, each with what to do.
    """

    at: float
    refusal: Refusal | None
    workers: tuple[WorkerLine, ...]
    reports: tuple[WorkerReport, ...]
    fleet: Fleet
    states: Mapping[str, int]
    unfinished: int
    waiting: tuple[Waiting, ...]
    stuck: tuple[Waiting, ...]
    parked_since: float
    overdue: int
    dead: int
    alerts: tuple[Alert, ...]

    @property
    def waiting_since(self) -> float:
        """Since when the longest waiting turn could run; 0: none waits."""
        return self.waiting[0].since if self.waiting else 0.0

    @property
    def waiting_by_queue(self) -> dict[str, int]:
        """How many turns a worker could take now, by queue."""
        return {**dict.fromkeys(sorted(set(QUEUES.values())), 0), **Counter(each.queue for each in self.waiting)}


async def read_standing(store: Store, prober: Prober) -> Standing:
    """Look at the store, once.

    Raises:
        StoreUnavailable: it does not answer, or refuses even to be read.
    """
    refusal = await _refusal(prober)
    seconds, micros = await store.ask(store.redis.time())
    now = seconds + micros / 1e6
    rows, unfinished, overdue, dead = list[Row](), 0, 0, 0
    for keys in store.shards:
        dead += await store.ask(store.redis.zcard(keys.dead))
        unfinished += await store.ask(store.redis.zcard(keys.due))
        overdue += await store.ask(store.redis.zcount(keys.due, "-inf", int((now - _OVERDUE_SECONDS) * 1000)))
        due = await store.ask(store.redis.zrange(keys.due, 0, LOOK_AT_MOST - 1, withscores=True))
        for start in range(0, len(due), _BATCH):
            pipe = store.redis.pipeline(transaction=False)
            batch = [(raw.decode(), score) for raw, score in due[start : start + _BATCH]]
            for turn_id, _ in batch:
                pipe.hmget(keys.turn(turn_id), FIELDS)
            for (turn_id, score), values in zip(batch, await store.ask(pipe.execute()), strict=True):
                if found := row(turn_id, score, values):
                    rows.append(found)
    reports = tuple(await reported_workers(store))
    fleet = fleet_of(reports, now)
    ready = tuple(waiting(rows, now, store.settings.announce_seconds))
    waits_in_vain = tuple(stuck(fleet, ready, now))
    return Standing(
        at=now,
        refusal=refusal,
        workers=tuple(roster(reports, rows, now, await ended_workers(store))),
        reports=reports,
        fleet=fleet,
        states=Counter(each.state.value for each in rows),
        unfinished=unfinished,
        waiting=ready,
        stuck=waits_in_vain,
        parked_since=min((each.parked_at for each in rows if each.state == "parked"), default=0) / 1000,
        overdue=overdue,
        dead=dead,
        alerts=tuple(alerts(fleet, now=now, refusal=refusal, overdue=overdue, stuck=waits_in_vain)),
    )


async def _refusal(prober: Prober) -> Refusal | None:
    """Why the store takes no write; None when it took one.

    Raises:
        StoreUnavailable: it does not answer.
    """
    try:
        await prober.writable()
    except StoreUnavailable as error:
        if error.refusal is None:
            raise
        return error.refusal
    return None
