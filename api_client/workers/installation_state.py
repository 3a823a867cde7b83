"""The state of an installation, its workers and its waiting turns."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from api_client.contract.errors import BadRequest, StoreUnavailable
from api_client.contract.keys import keys_for_turn
from api_client.contract.settings import Settings
from api_client.contract.settings.setting_faults import find_setting_faults
from api_client.contract.store_refusals import StoreRefusal
from api_client.contract.tasks import CHECK_QUEUE, RUN_QUEUE
from api_client.contract.turn import Priority, Turn, TurnState
from api_client.contract.worker_order import WorkerOrder
from api_client.contract.worker_reports import HEARD_SECONDS, WorkerReport
from api_client.store import Store
from api_client.workers.fleet import (
    SETTINGS,
    Alert,
    Fleet,
    OwnerRow,
    WorkerRow,
    check_disk,
    find_alerts,
    list_owners,
    list_workers,
    make_fleet,
)
from api_client.workers.monitor import Monitor
from api_client.workers.probe import Prober
from api_client.workers.reason import (
    FIELDS,
    FOR_A_WORKER,
    REASONS,
    InstallationFacts,
    Reason,
    UnfinishedTurn,
    Wait,
    WaitingGroup,
    explain_wait,
    group_by_reason,
    list_waiting,
    read_row,
)
from api_client.workers.reports import count_messages, parse_reports

#: Most unfinished turns to look at, and how many at once.
LOOK_AT_MOST, _BATCH = 20_000, 1000
#: A turn due for longer than this, in seconds, was forgotten by the reapers.
_OVERDUE_SECONDS = 15.0
#: Seconds for which ``read_faults`` reuses its result, and how many turns it looks at.
_FRESH_SECONDS, _FIRST = 2.0, 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallationState:
    """The state of an installation: its workers, waiting turns and alerts. Times are seconds since the epoch.

    Attributes:
        at: the store's clock.
        refusal: why the store accepts no writes; None while it does.
        workers: worker processes of the last day.
        fleet: the workers that reported recently.
        states: unfinished turns by state, of the first ``LOOK_AT_MOST``; unfinished: their number.
        waiting: turns that only need a worker, longest waiting first.
        waits: all turns that do not run, by reason, most severe first. lost: turns whose worker is gone.
        owners: owners of the most unfinished turns.
        suspended_since: since when the longest suspended turn waits; 0 for none.
        overdue: turns that were due long ago and that no reaper looked at. dead: number of dead letters.
        alerts: what keeps turns from running, most basic first.
    """

    at: float
    refusal: StoreRefusal | None = None
    workers: tuple[WorkerRow, ...] = ()
    reports: tuple[WorkerReport, ...] = ()
    fleet: Fleet = Fleet()  # noqa: RUF009 (it cannot be changed)
    states: Mapping[str, int] = field(default_factory=dict)
    unfinished: int = 0
    waiting: tuple[WaitingGroup, ...] = ()
    waits: tuple[WaitingGroup, ...] = ()
    lost: frozenset[str] = frozenset()
    owners: tuple[OwnerRow, ...] = ()
    suspended_since: float = 0.0
    overdue: int = 0
    dead: int = 0
    alerts: tuple[Alert, ...] = ()

    @property
    def stuck(self) -> int:
        """Return how many turns wait although a worker has a free slot for them."""
        return sum(each.count for each in self.waits if each.wait.reason is Reason.STUCK)

    @property
    def why(self) -> tuple[str, ...]:
        """Return the codes of all alerts and wait reasons, most serious first, for callers who may not see details."""
        waits = (each.wait.reason.value for each in self.waits if each.wait.reason is not Reason.NEXT)
        return tuple(dict.fromkeys((*(each.check for each in self.alerts), *waits)))

    @property
    def waiting_since(self) -> float:
        """Return when the longest waiting turn could first have run, in seconds since the epoch, or 0 if none waits."""
        return self.waiting[0].since if self.waiting else 0.0

    @property
    def waiting_by_queue(self) -> dict[str, int]:
        """Return how many turns a worker could take now, by queue."""
        return {**dict.fromkeys((CHECK_QUEUE, RUN_QUEUE), 0), **Counter(each.queue for each in self.waiting)}

    @property
    def waits_by_reason(self) -> Counter[str]:
        """Return how many turns are not running, by reason."""
        found = Counter({each.value: 0 for each in REASONS})
        for each in self.waits:
            found[each.wait.reason.value] += each.count
        return found

    @property
    def slots_needed(self) -> float:
        """Return the ratio of the slots that turns use or could use now to all slots, for autoscaling."""
        taken = self.states.get(TurnState.RUNNING, 0) + self.states.get(TurnState.VALIDATING, 0)
        return (taken + self.waiting_by_queue[RUN_QUEUE]) / max(1, self.fleet.slots)

    @property
    def recent_reports(self) -> list[WorkerReport]:
        return [each for each in self.reports if self.at - each.at < HEARD_SECONDS]

    @property
    def free_slots(self) -> dict[str, int]:
        """Return how many more turns the workers could carry out now, by queue."""
        able = [each for each in self.recent_reports if not each.stalled]
        return {
            queue: sum(each.free_slots(queue) for each in able if queue in each.queues)
            for queue in (CHECK_QUEUE, RUN_QUEUE)
        }


async def read_installation_state(
    store: Store, prober: Prober, monitors: Sequence[Monitor] = (), at_most: int = LOOK_AT_MOST
) -> InstallationState:
    """Read the state of the installation from the store, with the first ``at_most`` unfinished turns.

    Raises ``StoreUnavailable`` if the store does not answer or refuses reads.
    """
    facts, ended = await _read_facts(store, prober, monitors)
    if not facts.refusal:  # a monitor may write
        troubles = [wait for each in monitors for wait in await each.find_waits(facts.at)]
        facts = replace(facts, troubles=troubles)
    now, rows, keys = facts.at, list[UnfinishedTurn](), store.keys
    dead = await store.await_reply(store.redis.zcard(keys.dead))
    unfinished = await store.await_reply(store.redis.zcard(keys.due))
    overdue = await store.await_reply(store.redis.zcount(keys.due, "-inf", int((now - _OVERDUE_SECONDS) * 1000)))
    due = await store.await_reply(store.redis.zrange(keys.due, 0, at_most - 1, withscores=True))
    for start in range(0, len(due), _BATCH):
        pipe = store.redis.pipeline(transaction=False)
        batch = [(raw.decode(), score) for raw, score in due[start : start + _BATCH]]
        for turn_id, _ in batch:
            pipe.hmget(keys.turn(turn_id), FIELDS)
        for (turn_id, score), values in zip(batch, await store.await_reply(pipe.execute()), strict=True):
            if found := read_row(turn_id, score, values):
                rows.append(found)
    reports, fleet = tuple(facts.reports), make_fleet(facts.reports, now)
    found_waiting = list_waiting(rows, facts)
    waits = tuple(group_by_reason(found_waiting))
    seen = {each.sessions: each.host for each in reports if each.sessions and now - each.at < HEARD_SECONDS}
    apart = {each.host for each in reports if each.sessions in seen} if len(seen) > 1 else set[str]()
    return InstallationState(
        at=now,
        refusal=facts.refusal,
        workers=tuple(list_workers(reports, rows, now, ended)),
        reports=reports,
        fleet=fleet,
        states=Counter(each.state.value for each in rows),
        unfinished=unfinished,
        waiting=tuple(each for each in found_waiting if each.wait.reason in FOR_A_WORKER),
        waits=waits,
        lost=frozenset(each.turn_id for each in found_waiting if each.wait.reason is Reason.LOST),
        owners=tuple(list_owners(rows)),
        suspended_since=min((each.suspended_at for each in rows if each.state == "suspended"), default=0) / 1000,
        overdue=overdue,
        dead=dead,
        alerts=(
            *find_alerts(fleet, facts, overdue=overdue, waits=waits, folders=apart),
            *await asyncio.to_thread(_check_surroundings, store.settings),
        ),
    )


def _check_surroundings(settings: Settings) -> list[Alert]:
    found = [Alert(SETTINGS + each.check, each.message, each.fix) for each in find_setting_faults(settings)]
    with suppress(OSError):
        disk = shutil.disk_usage(settings.root)
        found.append(check_disk(disk.free, disk.total, str(settings.root)))
    return [each for each in found if each.severity != "ok"]


async def _read_facts(
    store: Store, prober: Prober, monitors: Sequence[Monitor]
) -> tuple[InstallationFacts, list[WorkerReport]]:
    refusal, keys = await _read_refusal(prober), store.keys
    pipe = store.redis.pipeline(transaction=False)
    pipe.time()
    pipe.hgetall(keys.workers)
    pipe.hgetall(keys.ended_workers)
    pipe.pubsub_channels(keys.alive("*"))
    pipe.zrange(keys.at_work, 0, -1)
    (seconds, micros), there, over, alive, places = await store.await_reply(pipe.execute())
    now, ended = seconds + micros / 1e6, parse_reports(over)
    obstacles = [await each.read_obstacle(now) for each in monitors]
    facts = InstallationFacts(
        at=now,
        reports=parse_reports(there, alive),
        ended=frozenset(each.name for each in ended),
        refusal=refusal,
        obstacles=[each for each in obstacles if each],
        announce_seconds=store.settings.announce_seconds,
        at_work=frozenset(place.decode() for place in places),
    )
    return facts, ended


async def _read_refusal(prober: Prober) -> StoreRefusal | None:
    try:
        await prober.check_writable()
    except StoreUnavailable as error:
        if error.refusal is None:
            raise
        return error.refusal
    return None


class Workers:
    """Reads the state of workers and waiting turns, and gives orders to workers. Methods raise ``StoreUnavailable``."""

    def __init__(self, store: Store, prober: Prober, monitors: Sequence[Monitor] = ()) -> None:
        self._store, self._prober, self._monitors = store, prober, monitors
        self._why: tuple[float, tuple[str, ...]] = (float("-inf"), ())

    async def read_state(self, at_most: int = LOOK_AT_MOST) -> InstallationState:
        """Read the current state of the installation, with the ``at_most`` unfinished turns that are due first."""
        return await read_installation_state(self._store, self._prober, self._monitors, at_most)

    async def explain_waits(self, turns: Iterable[Turn]) -> dict[str, Wait]:
        """Return for each turn, by its id, the reason why it is not running."""
        unfinished = [each for each in turns if each.state is not TurnState.FINISHED]
        if not unfinished:
            return {}
        facts, _ = await _read_facts(self._store, self._prober, self._monitors)
        pipe = self._store.redis.pipeline(transaction=False)
        for turn in unfinished:
            keys = keys_for_turn(self._store.namespace, turn.turn_id)
            pipe.zscore(keys.due, turn.turn_id)
            pipe.hmget(keys.turn(turn.turn_id), FIELDS)
            pipe.lindex(keys.session(turn.request.session_id), 0)
        answers, found = await self._store.await_reply(pipe.execute()), dict[str, Wait]()
        for turn, due, values, head in zip(unfinished, answers[::3], answers[1::3], answers[2::3], strict=True):
            read = read_row(turn.turn_id, due or 0.0, values)
            if read and (wait := explain_wait(read, (head or b"").decode(), facts)):
                found[turn.turn_id] = wait
        return found

    async def read_faults(self) -> tuple[str, ...]:
        """Return the codes of current alerts and wait reasons, cached for some seconds."""
        at, found = self._why
        if time.monotonic() - at > _FRESH_SECONDS:
            found = (await read_installation_state(self._store, self._prober, self._monitors, _FIRST)).why
            self._why = (time.monotonic(), found)
        return found

    async def count_messages(self) -> dict[str, int]:
        """Return the number of messages in each queue of the broker."""
        found: dict[str, int] = await self._store.await_reply(count_messages(self._store))
        return found

    async def count_queued(self) -> dict[str, int]:
        """Return how many turns are waiting in the fair queue for their first run, by priority."""
        names, key = [each.value for each in Priority], self._store.keys.waiting
        return {name: await self._store.send_command("ZLEXCOUNT", key, f"[{name}|", f"({name}}}") for name in names}

    async def read_reports(self) -> list[WorkerReport]:
        # A store that accepts no writes has no new reports; channel names then show which workers live.
        keys = self._store.keys
        stored = await self._store.await_reply(self._store.redis.hgetall(keys.workers))
        return parse_reports(stored, await self._store.await_reply(self._store.redis.pubsub_channels(keys.alive("*"))))

    async def is_queue_full(self) -> bool:
        """Return True if as many turns as allowed have not ended, suspended turns included."""
        most = self._store.settings.max_unfinished
        return bool(most) and int(await self._store.send_command("ZCARD", self._store.keys.due)) >= most

    async def order_worker(self, name: str, order: WorkerOrder) -> str:
        """Store an operator's order, to be read at the worker's next heartbeat. Return the worker's full name.

        ``name`` may be the beginning of the process name. Idempotent. Raises ``BadRequest`` if no name or several names
        begin like this.
        """
        whole = await self.find_worker(name)
        known = [each.name for each in await self.read_reports()]
        keys = self._store.keys
        ordered = await self._store.await_reply(self._store.redis.hkeys(keys.orders))
        if left := [raw for raw in ordered if raw.decode() not in known]:  # of workers that are gone for good
            await self._store.await_reply(self._store.redis.hdel(keys.orders, *left))
        if order is WorkerOrder.RESUME:
            await self._store.await_reply(self._store.redis.hdel(keys.orders, whole))
        else:
            await self._store.await_reply(self._store.redis.hset(keys.orders, whole, order.value))
        return whole

    async def find_worker(self, name: str) -> str:
        """Return the name of the only worker process whose name begins with ``name``. Raises ``BadRequest``."""
        known = [each.name for each in await self.read_reports()]
        meant = [each for each in known if each == name] or [each for each in known if name and each.startswith(name)]
        if len(meant) != 1:
            why = f"several workers begin with {name!r}" if meant else f"no worker {name!r}"
            raise BadRequest(f"{why}; there are: {', '.join(meant or known) or 'none'}", param="name")
        return meant[0]
