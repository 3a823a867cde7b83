"""What is at this moment: unfinished turns by state, waiting messages, dead letters, workers that live."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

from api_client.contract.keys import Keys
from api_client.contract.tasks import CHECK_QUEUE, QUEUES
from api_client.store import Store
from api_client.workers.queues import waiting_messages

#: Records that are looked at, at most, and how many at once.
LOOK_AT_MOST, _BATCH = 20_000, 1000
_WAITING = "queued"
#: What is read of each record: its state and age, and what says whether a worker could take it now.
_FIELDS = ("state", "created_at", "session_id", "token", "next", "not_before")
_AT_REST = {"queued", "ran"}
#: A worker that reported nothing for this long is not counted; they report every two seconds.
_HEARD_SECONDS = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Gauges:
    """An installation at one moment.

    Attributes:
        states: unfinished turns by state, of the first ``LOOK_AT_MOST``. unfinished: how many there are.
        oldest_waiting_seconds: how long the longest waiting queued turn has waited; 0 when none waits.
        queues: Celery messages that nobody took yet, by queue.
        waiting: turns that a worker could take now, by queue: one for each session. Autoscalers read this.
        dead_letters: turns that wait for an operator.
        workers: worker processes heard of just now; ``deaf_workers`` of these take no messages though they could,
            ``sick_workers`` take none because their machine cannot carry out turns.
        free_slots: how many more turns they could carry out at once, by queue.
        lease_round_seconds: the longest that a worker took to renew its leases in the last minute.
    """

    states: dict[str, int]
    unfinished: int
    oldest_waiting_seconds: float
    queues: dict[str, int]
    waiting: dict[str, int]
    dead_letters: int
    workers: int
    deaf_workers: int
    sick_workers: int
    free_slots: dict[str, int]
    lease_round_seconds: float

    def to_dict(self) -> dict[str, Any]:
        """The figures as a JSON-ready mapping."""
        return asdict(self)


async def read_gauges(store: Store) -> Gauges:
    """Look at the store, and at the broker's queues.

    Raises:
        RedisError: one of them does not answer.
    """
    states: Counter[str] = Counter()
    sessions: dict[str, str] = {}
    unfinished = dead = 0
    seconds, micros = await store.redis.time()
    oldest = now = seconds + micros / 1e6
    for keys in store.shards:
        dead += await store.redis.zcard(keys.dead)
        unfinished += await store.redis.zcard(keys.due)
        ids: list[Any] = await store.redis.zrange(keys.due, 0, LOOK_AT_MOST - 1)
        for start in range(0, len(ids), _BATCH):
            pipe = store.redis.pipeline(transaction=False)
            for turn_id in ids[start : start + _BATCH]:
                pipe.hmget(keys.turn(turn_id.decode()), *_FIELDS)
            for state, created_at, *place in await pipe.execute():
                if state is None:
                    continue
                _note(sessions, now, state, *place)
                states[state.decode()] += 1
                if state.decode() == _WAITING:
                    oldest = min(oldest, int(created_at) / 1000)
    return Gauges(
        states=dict(states),
        unfinished=unfinished,
        oldest_waiting_seconds=max(0.0, now - oldest),
        queues=await waiting_messages(store),
        waiting={**dict.fromkeys(sorted(set(QUEUES.values())), 0), **Counter(filter(None, sessions.values()))},
        dead_letters=dead,
        **await _workers(store, now),
    )


def _note(
    sessions: dict[str, str], now: float, state: bytes, session: bytes | None, token: bytes, link: bytes, after: bytes
) -> None:
    """Note for a turn's session in which queue it waits for a worker; empty when one of its turns is held or parked."""
    name = (session or b"").decode("utf-8", "replace")
    if token or state.decode() not in _AT_REST:
        sessions[name] = ""
    elif int(after or 0) <= now * 1000 and sessions.get(name) != "":
        task = (link or b"").decode().partition("/")[0]
        sessions.setdefault(name, QUEUES.get(task, ""))


async def _workers(store: Store, now: float) -> dict[str, Any]:
    """What worker processes reported just now; ``now`` in seconds of the store's clock."""
    heard: dict[Any, Any] = await store.redis.hgetall(Keys(store.namespace).workers)
    told = [worker for worker in map(json.loads, heard.values()) if worker["at"] > now - _HEARD_SECONDS]
    free = dict.fromkeys(sorted(set(QUEUES.values())), 0)
    for worker in told:
        for queue in free.keys() & worker["queues"]:
            name = "check_free" if queue == CHECK_QUEUE else "free"
            free[queue] += 0 if worker["deaf"] else worker.get(name, 0)
    return {
        "workers": len(told),
        "deaf_workers": sum(worker["deaf"] for worker in told),
        "sick_workers": sum(bool(worker.get("sick")) for worker in told),
        "free_slots": free,
        "lease_round_seconds": max((worker.get("lease_round", 0.0) for worker in told), default=0.0),
    }
