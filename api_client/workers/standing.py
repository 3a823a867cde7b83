"""What is stuck: the one answer that ``turns doctor``, the overview, ``turns top``, /readyz and /metrics give."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from api_client.budgets.spending import Spending
from api_client.contract.errors import StoreUnavailable
from api_client.contract.keys import Keys, keys_of
from api_client.contract.tasks import QUEUES
from api_client.contract.turn import Turn, TurnState
from api_client.contract.values.worker_reports import HEARD_SECONDS, WorkerReport
from api_client.contract.words.store_refusals import Refusal
from api_client.pauses.pause import read_pauses
from api_client.store import Store
from api_client.workers.alerts import Alert, Fleet, alerts, fleet_of
from api_client.workers.probe import Prober
from api_client.workers.reason import FOR_A_WORKER, Facts, Reason, Wait, Waiting, grouped, waiting, why
from api_client.workers.reports import reports_of
from api_client.workers.roster import WorkerLine, roster
from api_client.workers.waiting import FIELDS, Row, row

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
        waiting: turns that lack nothing but a worker that takes them, longest waiting first.
        waits: all that do not run, by reason, the worst first. lost: those whose worker is there no more.
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
    waits: tuple[Waiting, ...]
    lost: frozenset[str]
    parked_since: float
    overdue: int
    dead: int
    alerts: tuple[Alert, ...]

    @property
    def stuck(self) -> int:
        """How many turns wait though a slot is free and nobody takes anything."""
        return sum(each.count for each in self.waits if each.wait.reason is Reason.STUCK)

    @property
    def why(self) -> tuple[str, ...]:
        """What is wrong and why turns wait, as codes, the worst first: for those who may read no more."""
        waits = (each.wait.reason.value for each in self.waits if each.wait.reason is not Reason.NEXT)
        return tuple(dict.fromkeys((*(each.check for each in self.alerts), *waits)))

    @property
    def waiting_since(self) -> float:
        """Since when the longest waiting turn could run; 0: none waits."""
        return self.waiting[0].since if self.waiting else 0.0

    @property
    def waiting_by_queue(self) -> dict[str, int]:
        """How many turns a worker could take now, by queue."""
        return {**dict.fromkeys(sorted(set(QUEUES.values())), 0), **Counter(each.queue for each in self.waiting)}


async def read_standing(
    store: Store, prober: Prober, spending: Spending | None = None, at_most: int = LOOK_AT_MOST
) -> Standing:
    """Look at the store, once; at the first ``at_most`` unfinished turns.

    Raises:
        StoreUnavailable: it does not answer, or refuses even to be read.
    """
    facts, ended = await _read_facts(store, prober)
    if spending and not facts.refusal:
        facts = replace(facts, budgets=await spending.today())
    now, rows, unfinished, overdue, dead = facts.at, list[Row](), 0, 0, 0
    for keys in store.shards:
        dead += await store.ask(store.redis.zcard(keys.dead))
        unfinished += await store.ask(store.redis.zcard(keys.due))
        overdue += await store.ask(store.redis.zcount(keys.due, "-inf", int((now - _OVERDUE_SECONDS) * 1000)))
        due = await store.ask(store.redis.zrange(keys.due, 0, at_most - 1, withscores=True))
        for start in range(0, len(due), _BATCH):
            pipe = store.redis.pipeline(transaction=False)
            batch = [(raw.decode(), score) for raw, score in due[start : start + _BATCH]]
            for turn_id, _ in batch:
                pipe.hmget(keys.turn(turn_id), FIELDS)
            for (turn_id, score), values in zip(batch, await store.ask(pipe.execute()), strict=True):
                if found := row(turn_id, score, values):
                    rows.append(found)
    reports, fleet = tuple(facts.reports), fleet_of(facts.reports, now)
    found_waiting = waiting(rows, facts)
    waits = tuple(grouped(found_waiting))
    seen = {each.sessions: each.host for each in reports if each.sessions and now - each.at < HEARD_SECONDS}
    apart = {each.host for each in reports if each.sessions in seen} if len(seen) > 1 else set[str]()
    return Standing(
        at=now,
        refusal=facts.refusal,
        workers=tuple(roster(reports, rows, now, ended)),
        reports=reports,
        fleet=fleet,
        states=Counter(each.state.value for each in rows),
        unfinished=unfinished,
        waiting=tuple(each for each in found_waiting if each.wait.reason in FOR_A_WORKER),
        waits=waits,
        lost=frozenset(each.turn_id for each in found_waiting if each.wait.reason is Reason.LOST),
        parked_since=min((each.parked_at for each in rows if each.state == "parked"), default=0) / 1000,
        overdue=overdue,
        dead=dead,
        alerts=tuple(alerts(fleet, facts, overdue=overdue, waits=waits, folders=apart)),
    )


async def read_waits(store: Store, prober: Prober, turns: Iterable[Turn]) -> dict[str, Wait]:
    """Why each of these turns does not run, by its id; without those that ended or are worked on. Raises as above."""
    unfinished = [each for each in turns if each.state is not TurnState.FINISHED]
    if not unfinished:
        return {}
    facts, _ = await _read_facts(store, prober)
    pipe = store.redis.pipeline(transaction=False)
    for turn in unfinished:
        keys = keys_of(store.namespace, turn.turn_id)
        pipe.zscore(keys.due, turn.turn_id)
        pipe.hmget(keys.turn(turn.turn_id), FIELDS)
        pipe.lindex(keys.session(turn.request.session_id), 0)
    answers, found = await store.ask(pipe.execute()), dict[str, Wait]()
    for turn, due, values, head in zip(unfinished, answers[::3], answers[1::3], answers[2::3], strict=True):
        read = row(turn.turn_id, due or 0.0, values)
        if read and (wait := why(read, (head or b"").decode(), facts)):
            found[turn.turn_id] = wait
    return found


async def _read_facts(store: Store, prober: Prober) -> tuple[Facts, list[WorkerReport]]:
    """What concerns every turn, by one question; and the last reports of workers that ended."""
    refusal, keys = await _refusal(prober), Keys(store.namespace)
    pipe = store.redis.pipeline(transaction=False)
    pipe.time()
    pipe.hgetall(keys.workers)
    pipe.hgetall(keys.ended_workers)
    pipe.pubsub_channels(keys.alive("*"))
    for shard in store.shards:
        pipe.hgetall(shard.pauses)
    (seconds, micros), there, over, alive, *pauses = await store.ask(pipe.execute())
    now, ended = seconds + micros / 1e6, reports_of(over)
    facts = Facts(
        at=now,
        reports=reports_of(there, alive),
        ended=frozenset(each.name for each in ended),
        refusal=refusal,
        pauses={shard: {each.field: each for each in read_pauses(stored, now)} for shard, stored in enumerate(pauses)},
        announce_seconds=store.settings.announce_seconds,
    )
    return facts, ended


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
