"""The monitor of pauses, circuit breakers and limits."""

from __future__ import annotations

import time
from collections.abc import Sequence

from api_client.pauses.pause import BREAKER, LIMIT, WHATS
from api_client.pauses.pause_waits import PauseObstacle, find_pause_waits
from api_client.pauses.pauses import Pauses
from api_client.workers.monitor import Gauge, Monitor, Trouble
from api_client.workers.reason import Obstacle, Wait


class PauseMonitor(Monitor):
    """Reports active pauses and open circuit breakers, and explains which turns wait for them."""

    name, part = "pauses", "pauses"

    def __init__(self, pauses: Pauses) -> None:
        self._pauses = pauses

    async def read_gauges(self) -> Sequence[Gauge]:
        """Return metrics with the number of active pauses of each kind and of the turns that they hold back."""
        kinds, held = dict.fromkeys([*WHATS, BREAKER, LIMIT, "credit"], 0), await self._pauses.count_held()
        for each in await self._pauses.list_active():
            kinds["credit" if each.spent else each.what] += 1
        return [
            Gauge("helix_pauses", "Active pauses, open circuit breakers and limits, by kind.", kinds, "what"),
            Gauge("helix_held_turns", "Turns that a pause or an open circuit breaker holds back.", {"": held}),
        ]

    async def find_troubles(self) -> Sequence[Trouble]:
        """Return a problem for each open circuit breaker and each model service without credit."""
        found, now = [], time.time()
        for each in await self._pauses.list_active():
            kind = "breaker.opened" if each.what == BREAKER else "service.no_credit" if each.spent else ""
            if kind:
                data: dict[str, str | int | float] = {"since": each.since, "until": each.until}
                data |= {"model": each.name, "errors": each.errors} if each.what == BREAKER else {"service": each.name}
                about = f"{each.name} {each.since}"
                found.append(Trouble(kind=kind, subject=about, at=now, page="/paused", data=data))
        return found

    async def find_waits(self, now: float) -> Sequence[Wait]:
        """Return the reasons why turns wait: paused intake, open circuit breakers and services without credit."""
        return find_pause_waits(await self._pauses.list_active(now), now)

    async def read_obstacle(self, now: float) -> Obstacle:
        return PauseObstacle(await self._pauses.list_active(now))
