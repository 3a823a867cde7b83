"""Which workers are there, what they are ordered to do, and how many turns have not ended."""

from __future__ import annotations

import time
from collections.abc import Iterable

from api_client.budgets.spending import Spending
from api_client.contract.errors import BadRequest
from api_client.contract.keys import Keys
from api_client.contract.turn import Turn
from api_client.contract.values.worker_order import WorkerOrder
from api_client.contract.values.worker_reports import WorkerReport
from api_client.store import Store
from api_client.workers.gauges import Gauges, read_gauges
from api_client.workers.probe import Prober
from api_client.workers.reason import Wait
from api_client.workers.reports import reported_workers
from api_client.workers.standing import Standing, read_standing, read_waits

#: How long an answer of ``why`` holds, in seconds, and how many turns it looks at.
_FRESH_SECONDS, _FIRST = 2.0, 1000


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
        """Why each of these turns does not run, by its id: what list, show, the turn's page and chats say."""
        return await read_waits(self._store, self._prober, turns)

    async def why(self) -> tuple[str, ...]:
        """``Standing.why``, of the turns that are looked after first; what was found holds for some seconds."""
        at, found = self._why
        if time.monotonic() - at > _FRESH_SECONDS:
            found = (await read_standing(self._store, self._prober, self._spending, _FIRST)).why
            self._why = (time.monotonic(), found)
        return found

    async def gauges(self) -> Gauges:
        """What is at this moment: turns by state, queues, workers."""
        found: Gauges = await self._store.ask(read_gauges(self._store, await self.standing()))
        return found

    async def reported(self) -> list[WorkerReport]:
        """What each worker process last reported, as ``reported_workers``."""
        return await reported_workers(self._store)

    async def unfinished(self) -> int:
        """How many turns have not ended, those that wait for a person included.

        Raises:
            StoreUnavailable: the store does not answer.
        """
        return sum([await self._store.ask(self._store.redis.zcard(keys.due)) for keys in self._store.shards])

    async def order(self, name: str, what: WorkerOrder) -> str:
        """Order a worker process to do something; it obeys with its next heartbeat. Twice makes no difference.

        ``name`` is its name or the beginning of it; the whole name is returned.

        Raises:
            BadRequest: no worker's name begins like this, or several do. StoreUnavailable: the store does not answer.
        """
        known = [each.name for each in await self.reported()]
        meant = [each for each in known if each == name] or [each for each in known if name and each.startswith(name)]
        if len(meant) != 1:
            why = f"several workers begin with {name!r}" if meant else f"no worker {name!r}"
            raise BadRequest(f"{why}; there are: {', '.join(meant or known) or 'none'}", param="name")
        keys = Keys(self._store.namespace)
        ordered = await self._store.ask(self._store.redis.hkeys(keys.orders))
        if left := [raw for raw in ordered if raw.decode() not in known]:  # of workers that are gone for good
            await self._store.ask(self._store.redis.hdel(keys.orders, *left))
        if what is WorkerOrder.RESUME:
            await self._store.ask(self._store.redis.hdel(keys.orders, meant[0]))
        else:
            await self._store.ask(self._store.redis.hset(keys.orders, meant[0], what.value))
        return meant[0]
