"""What is at this moment: unfinished turns by state, waiting messages, dead letters, workers that live."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from api_client.contract.tasks import QUEUES
from api_client.contract.values.worker_reports import HEARD_SECONDS
from api_client.store import Store
from api_client.workers.queues import waiting_messages
from api_client.workers.reason import Reason, Waiting
from api_client.workers.standing import Standing


@dataclass(frozen=True, slots=True, kw_only=True)
class Gauges:
    """An installation at one moment.

    Attributes:
        states: unfinished turns by state, of the first ``standing.LOOK_AT_MOST``. unfinished: how many there are.
        oldest_waiting_seconds: how long the longest waiting of the turns that could run now has waited; 0: none waits.
        oldest_parked_seconds: how long the longest parked turn has waited for a person; 0: none does.
        waits: turns that do not run, by reason.
        stuck: turns that could run, and wait though a slot is free and nobody takes anything.
        queues: Celery messages that nobody took yet, by queue.
        waiting: turns that a worker could take now, by queue: one for each session. Autoscalers read this.
        dead_letters: turns that wait for an operator.
        workers: worker processes heard of just now; ``stalled_workers`` of these take no messages though they could,
            ``sick_workers`` take none because their machine cannot carry out turns.
        free_slots: how many more turns they could carry out at once, by queue.
        lease_round_seconds: the longest that a worker took to renew its leases in the last minute.
        loop_blocked_seconds: the longest that something held up all turns of a worker process in the last minute.
    """

    states: dict[str, int]
    unfinished: int
    oldest_waiting_seconds: float
    oldest_parked_seconds: float
    waits: dict[str, int]
    stuck: int
    queues: dict[str, int]
    waiting: dict[str, int]
    dead_letters: int
    workers: int
    stalled_workers: int
    sick_workers: int
    free_slots: dict[str, int]
    lease_round_seconds: float
    loop_blocked_seconds: float

    def to_dict(self) -> dict[str, Any]:
        """The figures as a JSON-ready mapping."""
        return asdict(self)


def counted(waits: Iterable[Waiting]) -> Counter[str]:
    """How many turns do not run, by reason; every reason is there."""
    found = Counter({each.value: 0 for each in Reason})
    for each in waits:
        found[each.wait.reason.value] += each.count
    return found


async def read_gauges(store: Store, standing: Standing) -> Gauges:
    """The figures of a standing, and the lengths of the broker's queues.

    Raises:
        RedisError: the broker does not answer.
    """
    reports = [each for each in standing.reports if each.at > standing.at - HEARD_SECONDS]
    free = dict.fromkeys(sorted(set(QUEUES.values())), 0)
    for worker in reports:
        for queue in free.keys() & set(worker.queues):
            free[queue] += 0 if worker.stalled else worker.free_of(queue)
    return Gauges(
        states=dict(standing.states),
        unfinished=standing.unfinished,
        oldest_waiting_seconds=standing.at - standing.waiting_since if standing.waiting else 0.0,
        oldest_parked_seconds=standing.at - standing.parked_since if standing.parked_since else 0.0,
        waits=dict(counted(standing.waits)),
        stuck=standing.stuck,
        queues=await waiting_messages(store),
        waiting=standing.waiting_by_queue,
        dead_letters=standing.dead,
        workers=len(reports),
        stalled_workers=sum(worker.stalled for worker in reports),
        sick_workers=sum(bool(worker.sick) for worker in reports),
        free_slots=free,
        lease_round_seconds=max((worker.lease_round for worker in reports), default=0.0),
        loop_blocked_seconds=max((worker.loop_blocked for worker in reports), default=0.0),
    )
