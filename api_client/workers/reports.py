"""Reports of workers, ends of their processes, and the number of messages that wait in the broker."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from api_client.broker import celery_settings
from api_client.budgets import Spending
from api_client.contract.error_codes import StoreRefusal
from api_client.contract.issues import BadRequest, StoreUnavailable
from api_client.contract.keys import Keys, keys_of
from api_client.contract.settings import Settings
from api_client.contract.tasks import ALL_QUEUES, QUEUES, RUN_QUEUE
from api_client.contract.turn import Priority, Turn, TurnState
from api_client.contract.worker_reports import (
    HEARD_SECONDS,
    KEEP_SECONDS,
    MOST,
    ProcessExit,
    WorkerOrder,
    WorkerReport,
    there,
    worker_of,
)
from api_client.pauses import read_pauses
from api_client.store import Store
from api_client.store.connecting import open_store
from api_client.workers.fleet import (
    Alert,
    Fleet,
    OwnerLine,
    Prober,
    WorkerLine,
    alerts,
    disk,
    fleet_of,
    owner_lines,
    roster,
)
from api_client.workers.reason import (
    FIELDS,
    FOR_A_WORKER,
    Facts,
    Reason,
    Row,
    Wait,
    Waiting,
    grouped,
    row,
    waiting,
    why,
)

if TYPE_CHECKING:
    from redis.asyncio import Redis


#: A supervisor notices an end, and reaches the store, within this many seconds of the last beat.
_EARLY, _LATE = 5.0, 60.0


async def written_reports(redis: Redis, namespace: str) -> list[WorkerReport]:
    """Return the reports in the store alone, by name. Raises ``RedisError`` when it does not answer."""
    stored: Any = await redis.hgetall(Keys(namespace).workers)
    return reports_of(stored)


def reports_of(stored: Mapping[bytes, bytes], alive: Iterable[bytes] = ()) -> list[WorkerReport]:
    """The reports of a stored hash, by name; others are left out. Pure. ``alive``: channels of ``Keys.alive``."""
    signs = {
        name: float(at) for at, _, name in (each.decode().partition("}:alive:")[2].partition(":") for each in alive)
    }
    found = list[WorkerReport]()
    for name, text in sorted(stored.items()):
        with suppress(ValueError):
            report = WorkerReport.from_json(name.decode(), text)
            found.append(replace(report, at=max(report.at, signs.get(report.name, 0.0))))
    return found


async def note_exit(settings: Settings, ended: ProcessExit) -> None:
    """Remember how a process ended. Raises ``SettingsError``: no store is set. ``RedisError``: it does not answer."""
    key = Keys(settings.namespace).exits
    async with open_store(settings) as redis:
        both: Any = redis.pipeline()
        both.xadd(key, ended.to_fields(), maxlen=MOST, approximate=True)
        both.expire(key, KEEP_SECONDS)
        await both.execute()


async def read_exits(store: Store) -> list[ProcessExit]:
    """The ends that are remembered, oldest first. Raises as ``Store.ask``."""
    found = []
    for entry, fields in await store.ask(store.redis.xrange(Keys(store.namespace).exits, count=2 * MOST)) or []:
        with suppress(KeyError, ValueError):
            found.append(ProcessExit.from_entry(entry, fields))
    return found


def exit_of(exits: Iterable[ProcessExit], worker: str, *, heard: float, noticed: float) -> ProcessExit | None:
    """The end of a worker that was last heard of at ``heard`` and missed at ``noticed``; None if nobody saw it.

    A worker's name outlives its process, which is restarted: so the time decides. Pure. Seconds since the epoch.
    """
    likely = (each for each in exits if each.worker == worker and heard - _EARLY <= each.at <= noticed + _LATE)
    return next(likely, None)


async def waiting_messages(store: Store) -> dict[str, int]:
    """Return how many messages that nobody took yet wait in each queue of the broker, which may be the store too.

    Raises ``RedisError``: the broker does not answer.
    """
    settings = store.settings
    if settings.broker_url == settings.store_url:
        return await _lengths(store.redis, settings)
    async with open_store(replace(settings, store_url=settings.broker_url)) as broker:
        return await _lengths(broker, settings)


async def _lengths(broker: Redis, settings: Settings) -> dict[str, int]:
    prefix = celery_settings(settings)["broker_transport_options"]["global_keyprefix"]
    names = sorted(ALL_QUEUES)
    pipe = broker.pipeline(transaction=False)
    for name in names:
        pipe.llen(prefix + name)
    return dict(zip(names, await pipe.execute(), strict=True))


# All that a worker process keeps of itself in the store: its report, that it lives, and what operators order it.

#: Reports of workers that are gone stay for this long, in seconds, and at most this number of them.
_FORGET_SECONDS, _REMEMBERED = 86_400.0, 1000


class OwnReport:
    """One worker process in the store. Each method raises ``RedisError`` when the store does not answer."""

    def __init__(self, settings: Settings, name: str, redis: Any) -> None:
        self._name, self._keys = name, Keys(settings.namespace)
        self._redis = redis
        self._sign: Any = open_store(settings).pubsub()  # it listens over a separate connection
        self._kept_at = float("-inf")

    async def clock(self) -> float:
        """The store's clock, in seconds since the epoch: reports are by it, since a host's may be wrong."""
        seconds, micros = await self._redis.time()
        return int(seconds) + int(micros) / 1e6

    async def order(self) -> str:
        """Return what an operator ordered; empty for nothing."""
        found: bytes | None = await self._redis.hget(self._keys.orders, self._name)
        return (found or b"").decode()

    async def write(self, report: WorkerReport) -> None:
        """Report, and once an hour forget who died or ended a day ago. Raises ``ResponseError`` where it is refused."""
        await self._redis.hset(self._keys.workers, self._name, report.to_json())
        if time.monotonic() - self._kept_at > _FORGET_SECONDS / 24:
            for key in (self._keys.workers, self._keys.ended_workers):
                listed: Mapping[bytes, bytes] = await self._redis.hgetall(key)
                since = {name: _reported_at(text) for name, text in listed.items()}
                newest = sorted(since, key=since.__getitem__, reverse=True)
                if gone := [n for n in newest if report.at - since[n] > _FORGET_SECONDS] or newest[_REMEMBERED:]:
                    await self._redis.hdel(key, *gone)
            await self._redis.expire(self._keys.workers, int(_FORGET_SECONDS))
            self._kept_at = time.monotonic()
        await self._sign.aclose()

    async def live_without_writing(self, at: float) -> None:
        """Show a store that takes no writes that this worker lives (``reported_workers``)."""
        await self._sign.aclose()
        await self._sign.subscribe(self._keys.alive(f"{at}:{self._name}"))

    async def others(self) -> list[WorkerReport]:
        """The processes of other workers that are there, as they last reported. Raises ``ValueError`` as well."""
        found: Mapping[bytes, bytes] = await self._redis.hgetall(self._keys.workers)
        reports = there(WorkerReport.from_json(name.decode(), text) for name, text in found.items())
        return [each for each in reports if each.worker != worker_of(self._name)]

    async def end(self, last: WorkerReport) -> None:
        """Take the worker off the list; for a day it stays on that of workers that ended."""
        await self._sign.aclose()
        pipe = self._redis.pipeline(transaction=False)
        pipe.hset(self._keys.ended_workers, self._name, last.to_json())
        pipe.expire(self._keys.ended_workers, int(_FORGET_SECONDS))
        pipe.hdel(self._keys.workers, self._name)
        pipe.hdel(self._keys.orders, self._name)
        await pipe.execute()


def _reported_at(report: bytes) -> float:
    with suppress(ValueError):
        return WorkerReport.from_json("", report).at
    return 0.0


# Workers and stuck turns: the answer of ``turns doctor``, the overview, ``turns top``, /readyz and /metrics.

#: Unfinished turns that are looked at, at most, and how many at once.
LOOK_AT_MOST, _BATCH = 20_000, 1000
#: Reapers forgot a turn that is due for longer than this, in seconds.
_OVERDUE_SECONDS = 15.0
#: How long an answer of ``why`` holds, in seconds, and how many turns it looks at.
_FRESH_SECONDS, _FIRST = 2.0, 1000


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
        owners: those of most unfinished turns.
        parked_since: since when the longest parked turn waits for a person; 0: none.
        overdue: turns that were due long ago and that nobody looked at. dead: dead letters.
        alerts: what keeps turns from going on, causes first, each with what to do.
    """

    at: float
    refusal: StoreRefusal | None = None
    workers: tuple[WorkerLine, ...] = ()
    reports: tuple[WorkerReport, ...] = ()
    fleet: Fleet = Fleet()  # noqa: RUF009 (it cannot be changed)
    states: Mapping[str, int] = field(default_factory=dict)
    unfinished: int = 0
    waiting: tuple[Waiting, ...] = ()
    waits: tuple[Waiting, ...] = ()
    lost: frozenset[str] = frozenset()
    owners: tuple[OwnerLine, ...] = ()
    parked_since: float = 0.0
    overdue: int = 0
    dead: int = 0
    alerts: tuple[Alert, ...] = ()

    @property
    def stuck(self) -> int:
        """Return how many turns wait though a slot is free and nobody takes anything."""
        return sum(each.count for each in self.waits if each.wait.reason is Reason.STUCK)

    @property
    def why(self) -> tuple[str, ...]:
        """Return the faults and why turns wait, as codes, the worst first: for those who may read no more."""
        waits = (each.wait.reason.value for each in self.waits if each.wait.reason is not Reason.NEXT)
        return tuple(dict.fromkeys((*(each.check for each in self.alerts), *waits)))

    @property
    def waiting_since(self) -> float:
        """Since when the longest waiting turn could run; 0: none waits."""
        return self.waiting[0].since if self.waiting else 0.0

    @property
    def waiting_by_queue(self) -> dict[str, int]:
        """Return how many turns a worker could take now, by queue."""
        return {**dict.fromkeys(sorted(set(QUEUES.values())), 0), **Counter(each.queue for each in self.waiting)}

    @property
    def waits_by_reason(self) -> Counter[str]:
        """Return how many turns do not run, by reason; every reason is there."""
        found = Counter({each.value: 0 for each in Reason})
        for each in self.waits:
            found[each.wait.reason.value] += each.count
        return found

    @property
    def slots_needed(self) -> float:
        """Return the slots that turns take or could take now, as a part of all: what to scale workers by."""
        taken = self.states.get(TurnState.RUNNING, 0) + self.states.get(TurnState.VALIDATING, 0)
        return (taken + self.waiting_by_queue[RUN_QUEUE]) / max(1, self.fleet.slots)

    @property
    def heard(self) -> list[WorkerReport]:
        """The worker processes that were heard of just now."""
        return [each for each in self.reports if self.at - each.at < HEARD_SECONDS]

    @property
    def free_slots(self) -> dict[str, int]:
        """Return how many more turns workers could carry out at once, by queue."""
        able = [each for each in self.heard if not each.stalled]
        return {
            queue: sum(each.free_of(queue) for each in able if queue in each.queues)
            for queue in sorted(set(QUEUES.values()))
        }


async def read_standing(
    store: Store, prober: Prober, spending: Spending | None = None, at_most: int = LOOK_AT_MOST
) -> Standing:
    """Look at the store, once; at the first ``at_most`` unfinished turns.

    Raises ``StoreUnavailable``: it does not answer, or refuses even to be read.
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
        owners=tuple(owner_lines(rows)),
        parked_since=min((each.parked_at for each in rows if each.state == "parked"), default=0) / 1000,
        overdue=overdue,
        dead=dead,
        alerts=(*alerts(fleet, facts, overdue=overdue, waits=waits, folders=apart), *await _disk(store.settings)),
    )


async def _disk(settings: Settings) -> list[Alert]:
    """Return that the disk of this machine's HELIX_ROOT is nearly full; nothing where it is not or is not here."""
    with suppress(OSError):
        found = disk((await asyncio.to_thread(shutil.disk_usage, settings.root)).free, str(settings.root))
        return [found] if found.severity != "ok" else []
    return []


async def _read_facts(store: Store, prober: Prober) -> tuple[Facts, list[WorkerReport]]:
    """Return what concerns every turn, by one question; and the last reports of workers that ended."""
    refusal, keys = await _refusal(prober), Keys(store.namespace)
    pipe = store.redis.pipeline(transaction=False)
    pipe.time()
    pipe.hgetall(keys.workers)
    pipe.hgetall(keys.ended_workers)
    pipe.pubsub_channels(keys.alive("*"))
    for shard in store.shards:
        pipe.hgetall(shard.pauses)
        pipe.zrange(shard.at_work, 0, -1)
    (seconds, micros), there, over, alive, *found = await store.ask(pipe.execute())
    pauses, places = found[::2], found[1::2]
    now, ended = seconds + micros / 1e6, reports_of(over)
    facts = Facts(
        at=now,
        reports=reports_of(there, alive),
        ended=frozenset(each.name for each in ended),
        refusal=refusal,
        pauses={shard: {each.field: each for each in read_pauses(stored, now)} for shard, stored in enumerate(pauses)},
        announce_seconds=store.settings.announce_seconds,
        at_work=frozenset(place.decode() for each in places for place in each),
    )
    return facts, ended


async def _refusal(prober: Prober) -> StoreRefusal | None:
    """Return why the store takes no write; None when it took one. Raises ``StoreUnavailable``: it does not answer."""
    try:
        await prober.writable()
    except StoreUnavailable as error:
        if error.refusal is None:
            raise
        return error.refusal
    return None


class Workers:
    """The worker processes, and the turns that they have before them.

    Every method raises ``StoreUnavailable`` when the store does not answer.
    """

    def __init__(self, store: Store, prober: Prober, spending: Spending | None = None) -> None:
        self._store, self._prober, self._spending = store, prober, spending
        self._why: tuple[float, tuple[str, ...]] = (float("-inf"), ())

    async def standing(self) -> Standing:
        """Which turns wait, what is stuck and why, who works: what doctor, overview, top, /readyz and /metrics say."""
        return await read_standing(self._store, self._prober, self._spending)

    async def waits(self, turns: Iterable[Turn]) -> dict[str, Wait]:
        """Return why each of these turns does not run, by its id: what list, show, the turn's page and chats say."""
        unfinished = [each for each in turns if each.state is not TurnState.FINISHED]
        if not unfinished:
            return {}
        facts, _ = await _read_facts(self._store, self._prober)
        pipe = self._store.redis.pipeline(transaction=False)
        for turn in unfinished:
            keys = keys_of(self._store.namespace, turn.turn_id)
            pipe.zscore(keys.due, turn.turn_id)
            pipe.hmget(keys.turn(turn.turn_id), FIELDS)
            pipe.lindex(keys.session(turn.request.session_id), 0)
        answers, found = await self._store.ask(pipe.execute()), dict[str, Wait]()
        for turn, due, values, head in zip(unfinished, answers[::3], answers[1::3], answers[2::3], strict=True):
            read = row(turn.turn_id, due or 0.0, values)
            if read and (wait := why(read, (head or b"").decode(), facts)):
                found[turn.turn_id] = wait
        return found

    async def why(self) -> tuple[str, ...]:
        """``Standing.why``, of the turns that are looked after first; what was found holds for some seconds."""
        at, found = self._why
        if time.monotonic() - at > _FRESH_SECONDS:
            found = (await read_standing(self._store, self._prober, self._spending, _FIRST)).why
            self._why = (time.monotonic(), found)
        return found

    async def messages(self) -> dict[str, int]:
        """Return how many messages that nobody took yet wait in each queue of the broker."""
        found: dict[str, int] = await self._store.ask(waiting_messages(self._store))
        return found

    async def lined_up(self) -> dict[str, int]:
        """Return how many turns that never ran wait for their owner's turn, by priority."""
        found = {each.value: 0 for each in Priority}
        for keys in self._store.shards:
            for name in found:
                found[name] += await self._store.send("ZLEXCOUNT", keys.waiting, f"[{name}|", f"({name}}}")
        return found

    async def reported(self) -> list[WorkerReport]:
        """Return what each worker process last reported, as ``reported_workers``."""
        # A store that takes no writes takes no reports: then the names of channels say which workers live.
        keys = Keys(self._store.namespace)
        stored = await self._store.ask(self._store.redis.hgetall(keys.workers))
        return reports_of(stored, await self._store.ask(self._store.redis.pubsub_channels(keys.alive("*"))))

    async def unfinished(self) -> int:
        """Return how many turns have not ended, those that wait for a person included.

        Raises ``StoreUnavailable``: the store does not answer.
        """
        count = 0
        for keys in self._store.shards:
            count += await self._store.send("ZCARD", keys.due)
        return count

    async def order(self, name: str, what: WorkerOrder) -> str:
        """Order a worker process to do something; it obeys with its next heartbeat. Twice makes no difference.

        ``name`` is its name or the beginning of it; the whole name is returned. Raises ``BadRequest``: no worker's name
        begins like this, or several do. ``StoreUnavailable``: the store does not answer.
        """
        whole = await self.find(name)
        known = [each.name for each in await self.reported()]
        keys = Keys(self._store.namespace)
        ordered = await self._store.ask(self._store.redis.hkeys(keys.orders))
        if left := [raw for raw in ordered if raw.decode() not in known]:  # of workers that are gone for good
            await self._store.ask(self._store.redis.hdel(keys.orders, *left))
        if what is WorkerOrder.RESUME:
            await self._store.ask(self._store.redis.hdel(keys.orders, whole))
        else:
            await self._store.ask(self._store.redis.hset(keys.orders, whole, what.value))
        return whole

    async def find(self, name: str) -> str:
        """Return the whole name of the worker process whose name is this, or begins like this. Raises as ``order``."""
        known = [each.name for each in await self.reported()]
        meant = [each for each in known if each == name] or [each for each in known if name and each.startswith(name)]
        if len(meant) != 1:
            why = f"several workers begin with {name!r}" if meant else f"no worker {name!r}"
            raise BadRequest(f"{why}; there are: {', '.join(meant or known) or 'none'}", param="name")
        return meant[0]
