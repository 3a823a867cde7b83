"""Workers and stuck turns: the answer of ``turns doctor``, the overview, ``turns top``, /readyz and /metrics."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from api_client.contract.errors import BadRequest, StoreUnavailable
from api_client.contract.keys import keys_of
from api_client.contract.settings import Settings
from api_client.contract.store_refusals import StoreRefusal
from api_client.contract.tasks import CHECK_QUEUE, RUN_QUEUE
from api_client.contract.turn import Priority, Turn, TurnState
from api_client.contract.worker_order import WorkerOrder
from api_client.contract.worker_reports import HEARD_SECONDS, WorkerReport
from api_client.store import Store
from api_client.workers.fleet import Alert, Fleet, OwnerLine, WorkerLine, alerts, disk, fleet_of, owner_lines, roster
from api_client.workers.monitor import Monitor
from api_client.workers.probe import Prober
from api_client.workers.reason import (
    FIELDS,
    FOR_A_WORKER,
    Facts,
    Reason,
    Row,
    Wait,
    WaitingGroup,
    grouped,
    row,
    waiting,
    why,
)
from api_client.workers.reports import reports_of, waiting_messages

#: Unfinished turns that are looked at, at most, and how many at once.
LOOK_AT_MOST, _BATCH = 20_000, 1000
#: Reapers forgot a turn that is due for longer than this, in seconds.
_OVERDUE_SECONDS = 15.0
#: How long an answer of ``why`` holds, in seconds, and how many turns it looks at.
_FRESH_SECONDS, _FIRST = 2.0, 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallationState:
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
        suspended_since: since when the longest suspended turn waits for a person; 0: none.
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
    waiting: tuple[WaitingGroup, ...] = ()
    waits: tuple[WaitingGroup, ...] = ()
    lost: frozenset[str] = frozenset()
    owners: tuple[OwnerLine, ...] = ()
    suspended_since: float = 0.0
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
        return {**dict.fromkeys((CHECK_QUEUE, RUN_QUEUE), 0), **Counter(each.queue for each in self.waiting)}

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
            for queue in (CHECK_QUEUE, RUN_QUEUE)
        }


async def read_standing(
    store: Store, prober: Prober, monitors: Sequence[Monitor] = (), at_most: int = LOOK_AT_MOST
) -> InstallationState:
    """Look at the store, once; at the first ``at_most`` unfinished turns.

    Raises ``StoreUnavailable``: it does not answer, or refuses even to be read.
    """
    facts, ended = await _read_facts(store, prober, monitors)
    if not facts.refusal:  # a monitor may write
        troubles = [wait for each in monitors for wait in await each.find_waits(facts.at)]
        facts = replace(facts, troubles=troubles)
    now, rows, keys = facts.at, list[Row](), store.keys
    dead = await store.ask(store.redis.zcard(keys.dead))
    unfinished = await store.ask(store.redis.zcard(keys.due))
    overdue = await store.ask(store.redis.zcount(keys.due, "-inf", int((now - _OVERDUE_SECONDS) * 1000)))
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
    return InstallationState(
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
        suspended_since=min((each.suspended_at for each in rows if each.state == "suspended"), default=0) / 1000,
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


async def _read_facts(store: Store, prober: Prober, monitors: Sequence[Monitor]) -> tuple[Facts, list[WorkerReport]]:
    refusal, keys = await _refusal(prober), store.keys
    pipe = store.redis.pipeline(transaction=False)
    pipe.time()
    pipe.hgetall(keys.workers)
    pipe.hgetall(keys.ended_workers)
    pipe.pubsub_channels(keys.alive("*"))
    pipe.zrange(keys.at_work, 0, -1)
    (seconds, micros), there, over, alive, places = await store.ask(pipe.execute())
    now, ended = seconds + micros / 1e6, reports_of(over)
    obstacles = [await each.read_obstacle(now) for each in monitors]
    facts = Facts(
        at=now,
        reports=reports_of(there, alive),
        ended=frozenset(each.name for each in ended),
        refusal=refusal,
        obstacles=[each for each in obstacles if each],
        announce_seconds=store.settings.announce_seconds,
        at_work=frozenset(place.decode() for place in places),
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

    def __init__(self, store: Store, prober: Prober, monitors: Sequence[Monitor] = ()) -> None:
        self._store, self._prober, self._monitors = store, prober, monitors
        self._why: tuple[float, tuple[str, ...]] = (float("-inf"), ())

    async def standing(self) -> InstallationState:
        """Which turns wait, what is stuck and why, who works: what doctor, overview, top, /readyz and /metrics say."""
        return await read_standing(self._store, self._prober, self._monitors)

    async def waits(self, turns: Iterable[Turn]) -> dict[str, Wait]:
        """Return why each of these turns does not run, by its id: what list, show, the turn's page and chats say."""
        unfinished = [each for each in turns if each.state is not TurnState.FINISHED]
        if not unfinished:
            return {}
        facts, _ = await _read_facts(self._store, self._prober, self._monitors)
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
        """``InstallationState.why``, of the turns that are looked after first; it holds for some seconds."""
        at, found = self._why
        if time.monotonic() - at > _FRESH_SECONDS:
            found = (await read_standing(self._store, self._prober, self._monitors, _FIRST)).why
            self._why = (time.monotonic(), found)
        return found

    async def messages(self) -> dict[str, int]:
        """Return how many messages that nobody took yet wait in each queue of the broker."""
        found: dict[str, int] = await self._store.ask(waiting_messages(self._store))
        return found

    async def lined_up(self) -> dict[str, int]:
        """Return how many turns that never ran wait for their owner's turn, by priority."""
        names, key = [each.value for each in Priority], self._store.keys.waiting
        return {name: await self._store.send("ZLEXCOUNT", key, f"[{name}|", f"({name}}}") for name in names}

    async def reported(self) -> list[WorkerReport]:
        """Return what each worker process last reported, as ``reported_workers``."""
        # A store that takes no writes takes no reports: then the names of channels say which workers live.
        keys = self._store.keys
        stored = await self._store.ask(self._store.redis.hgetall(keys.workers))
        return reports_of(stored, await self._store.ask(self._store.redis.pubsub_channels(keys.alive("*"))))

    async def unfinished(self) -> int:
        """Return how many turns have not ended, those that wait for a person included.

        Raises ``StoreUnavailable``: the store does not answer.
        """
        return int(await self._store.send("ZCARD", self._store.keys.due))

    async def order(self, name: str, what: WorkerOrder) -> str:
        """Order a worker process to do something; it obeys with its next heartbeat. Twice makes no difference.

        ``name`` is its name or the beginning of it; the whole name is returned. Raises ``BadRequest``: no worker's name
        begins like this, or several do. ``StoreUnavailable``: the store does not answer.
        """
        whole = await self.find(name)
        known = [each.name for each in await self.reported()]
        keys = self._store.keys
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
