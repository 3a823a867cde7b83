"""Readiness: publishes a probe message like a turn's task, and expects a worker to take it within seconds."""

from __future__ import annotations

import asyncio
import secrets
import time
from dataclasses import dataclass

from api_client.broker.announcer import Announcer
from api_client.contract.keys import Keys
from api_client.contract.tasks import CHECK_QUEUE, RUN_QUEUE
from api_client.store import Store

_LOOK_SECONDS = 0.05
#: A positive result is reused for this long, so that health checks of many load balancers make one probe.
_FRESH_SECONDS = 5.0
_WRITTEN_SECONDS = 1.0
_KEPT_MS = 60_000
#: Unfinished turns whose leases tell a busy worker from a silent one.
_LEASES = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueProbe:
    """The result of sending a probe message to one queue.

    ``state`` is ``claimed``, ``busy`` (not claimed, but workers hold turns, so that every slot may be taken) or
    ``silent``.
    """

    queue: str
    state: str
    worker: str = ""
    seconds: float = 0.0


class Prober:
    """Publishes probe messages to test whether workers read their queues. Methods raise ``StoreUnavailable``."""

    def __init__(self, store: Store, announcer: Announcer) -> None:
        self._store = store
        self._redis, self._ask = store.redis, store.await_reply
        self._announcer = announcer
        self._lock = asyncio.Lock()
        self._last: tuple[float, tuple[QueueProbe, ...]] = (0.0, ())
        self._writing = asyncio.Lock()
        self._written = 0.0

    async def check_writable(self) -> None:
        """Raise ``StoreUnavailable`` unless a test write succeeds. Concurrent callers share one write."""
        async with self._writing:
            if self._written and time.monotonic() - self._written < _WRITTEN_SECONDS:
                return
            self._written = 0.0
            key = Keys(self._store.namespace).written
            await self._ask(self._redis.set(key, secrets.token_hex(8), px=_KEPT_MS))
            await self._store.check_kernel_writes()
            self._written = time.monotonic()

    async def is_ready(self, seconds: float) -> bool:
        """Return True if workers take messages from every queue within ``seconds``. Callers share one probe."""
        async with self._lock:
            at, last = self._last
            if not (last and time.monotonic() - at < _FRESH_SECONDS):
                found = await self.send_probes(seconds)
                # A negative result is not reused: the next caller probes again.
                good = all(each.state != "silent" for each in found)
                self._last = (time.monotonic(), found if good else ())
                return good
            return True

    async def send_probes(self, seconds: float) -> tuple[QueueProbe, ...]:
        """Send a probe message to each queue, wait for workers to take it, and return one result per queue."""
        nonce, began = secrets.token_hex(8), time.monotonic()
        key = Keys(self._store.namespace).probe(nonce)
        queues = (RUN_QUEUE, CHECK_QUEUE)
        for queue in queues:
            await self._announcer.publish_probe(queue, nonce, expires=max(30.0, seconds))
        taken: dict[str, QueueProbe] = {}
        while len(taken) < len(queues) and time.monotonic() - began < seconds:
            for queue, worker in (await self._ask(self._redis.hgetall(key))).items():
                name = queue.decode()
                passed = round(time.monotonic() - began, 3)
                taken.setdefault(name, QueueProbe(queue=name, state="claimed", worker=worker.decode(), seconds=passed))
            if len(taken) < len(queues):
                await asyncio.sleep(_LOOK_SECONDS)
        if len(taken) == len(queues):
            return tuple(taken[queue] for queue in queues)
        rest = "busy" if await self._any_lease_held() else "silent"
        return tuple(taken.get(queue, QueueProbe(queue=queue, state=rest, seconds=seconds)) for queue in queues)

    async def _any_lease_held(self) -> bool:
        """Return True if any worker holds a turn. Then an unanswered probe may only mean that all slots are busy."""
        now = await self._store.read_clock_ms()
        keys, pipe = self._store.keys, self._redis.pipeline(transaction=False)
        for turn_id in await self._ask(self._redis.zrange(keys.due, 0, _LEASES - 1)):
            pipe.hget(keys.turn(turn_id.decode()), "lease_until")
        return any(int(until or 0) > now for until in await self._ask(pipe.execute()))
