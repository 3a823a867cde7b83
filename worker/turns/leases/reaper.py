"""The reaper: finds the turns that no worker holds. Every worker process has one, and one of them looks for all.

It announces what was not claimed, takes turns from workers that died or froze, and ends what was cancelled. It takes
nothing before reapers have looked without a gap for one lease, nor when the store's clock has just jumped: after an
outage every holder gets the chance to beat first (``calm``).
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable

import structlog
from redis.exceptions import ResponseError

from api_client.contract.failpoints import reach
from api_client.contract.settings import Settings
from api_client.contract.tasks import Link
from api_client.contract.turn import Turn
from api_client.store.commands import BEGUN
from api_client.store.connection import OneConnection
from api_client.turns.record.backlog import Backlog
from api_client.turns.record.calm import Calm, Clocks
from api_client.turns.record.claim import ReapResult
from api_client.turns.record.ledger import Ledger
from worker.turns.loops.threads import Short

log = structlog.get_logger()

#: Due turns that are read at once, and those of them that are taken, announced or ended.
_READ_AT_MOST, _REAP_AT_MOST = 1000, 100
#: For so many looks it leaves the others alone: another takes over before the calm ends (``Calm``).
_STEPS_BACK = 2.0
#: Idle, it says so often that it knows the line of turns, in seconds (``line.lua``).
_KNOWN_SECONDS = 600.0


class Reaper:
    """Looks at due turns, in the second loop.

    It reports to ``lost`` the Celery task from which it took a turn, and that task's worker, and to ``ended`` a
    turn that it ended. These two, ``announce`` and ``first`` may block: the latter is for turns that never ran.
    Where one of these says False, the message was not published, and another reaper is let look for a while.
    """

    def __init__(
        self,
        settings: Settings,
        worker: str,
        announce: Callable[[Link, str, str], bool | None],
        first: Callable[[Link, str, str], bool | None] | None = None,
        lost: Callable[[str, str], object] = lambda task_id, worker: None,
        ended: Callable[[Turn], object] = lambda turn: None,
        connection: OneConnection | None = None,
    ) -> None:
        self._settings = settings
        self.name, self.seconds = "reaper", settings.reap_seconds
        connection = connection or OneConnection(settings)
        self._ledger = Ledger(settings, worker, connection)
        self._threads = Short(1, "reaper")
        self._announce, self._first = announce, first or announce
        self._lost, self._ended = lost, ended
        self._calm = Calm(settings, connection.redis, worker)
        self._backlog = Backlog(settings, connection.redis)
        self._clocks = Clocks(settings.lease_seconds)
        self._idle = self._left_out = self._another_looks = False
        self._released_at = self._steps_back_until = float("-inf")
        self._behind = ""

    async def leave(self) -> None:
        """Nobody has to know: other reapers go on."""

    async def poll(self) -> None:
        """Look, but leave out every other look while there is no unfinished turn: idle workers cost the store little.

        Raises:
            RedisError: the store does not answer.
        """
        self._left_out = self._idle and not self._left_out
        if not self._left_out:
            self._idle = False  # should the store not answer, nobody knows
            await self.look()

    async def recall(self) -> None:
        """Make every unfinished turn due now."""
        await self._ledger.recall()

    async def look(self) -> None:
        """Look once at everything that is due, unless another reaper does. With nothing to do, one command.

        The calm time may begin again with the first turn: the leases of turns that were not there yet end after it.

        Raises:
            RedisError: the store does not answer.
        """
        if time.monotonic() < self._steps_back_until:
            return
        looked = await self._calm.look() if self._another_looks else None
        if looked and not looked.for_all:
            return
        self._another_looks = False
        self._idle = await self._backlog.empty()
        if self._idle:
            self._clocks.rest()
            if time.monotonic() - self._released_at > _KNOWN_SECONDS:
                await self._release()
            return
        looked = looked or await self._calm.look()
        self._another_looks = not looked.for_all
        if self._another_looks:
            self._clocks.rest()
            return
        steady = self._clocks.look(time.monotonic(), looked.now)
        may_take = steady and looked.calm >= self._settings.lease_seconds
        if time.monotonic() - self._released_at > self._settings.announce_seconds:
            await self._release()
        if self._clocks.jumped_back or looked.set_back:
            log.warning("reaper.clock_set_back")
            await self._ledger.recall()
        # 100,000 turns may wait, and hundreds of workers die at once; but others must see that it looks.
        until = time.monotonic() + self._settings.reap_seconds
        while await self._look_at_due(int(looked.now * 1000), may_take=may_take) and time.monotonic() < until:
            pass
        await self._ledger.fold()

    async def _look_at_due(self, now: int, *, may_take: bool) -> bool:
        """Look at what is due; True if more may be. Those whose announcements wait hold up no other."""
        due = await self._backlog.due(now, _READ_AT_MOST)
        others = await self._backlog.put_off(due, now)
        for turn_id in [turn_id for turn_id, _ in due if turn_id in others][:_REAP_AT_MOST]:
            try:
                await self._handle(turn_id, await self._ledger.reap(turn_id, may_take=may_take))
            except (ResponseError, ValueError) as error:
                await self._ledger.put_aside(turn_id, error)
        return len(due) == _READ_AT_MOST or len(others) > _REAP_AT_MOST

    async def _release(self) -> None:
        """Start turns that the fair queue may release now, and give back slots of turns that have ended."""
        behind = self._behind
        found = await self._ledger.release(behind)
        for link, turn_id, session_id in found.left:
            await self._published(self._first, link, turn_id, session_id)
        self._behind = found.places[-1] if found.places else ""
        if ended := await self._ledger.ended(found.places):
            log.info("reaper.places_mended", places=len(ended))
            await self._ledger.release(behind, ended)
        self._released_at = time.monotonic()

    async def _handle(self, turn_id: str, found: ReapResult) -> None:
        if found.what in {"announce", "finished"}:
            task_id, worker = await self._ledger.lost_task(turn_id)
            if task_id:
                self._lost(task_id, worker)
        if found.what == "announce":
            reach("turn.reaped")
            log.info("turn.announced", turn_id=turn_id, link=found.link)
            await self._announced(Link.parse(found.link), turn_id, found.session_id)
        elif found.what == "interrupt":
            await self._ledger.cancel(found.head, found.session_id)
        elif found.what == "finished":
            log.warning("turn.given_up", turn_id=turn_id, outcome=found.outcome)
            if found.head and (link := await self._ledger.next_link(found.head)):
                await self._announced(link, found.head, found.session_id)
            if turn := await self._ledger.turn(turn_id):
                await self._threads.do(functools.partial(self._ended, turn))

    async def _announced(self, link: Link, turn_id: str, session_id: str) -> None:
        if link.begins and await self._ledger.line_up(turn_id, session_id, link) != BEGUN:
            return
        await self._published(self._announce, link, turn_id, session_id)

    async def _published(
        self, publish: Callable[[Link, str, str], bool | None], link: Link, turn_id: str, session_id: str
    ) -> None:
        """Publish a message. Where the broker cannot be reached from here, it may be from elsewhere."""
        if await self._threads.do(functools.partial(publish, link, turn_id, session_id)) is False:
            self._steps_back_until = time.monotonic() + _STEPS_BACK * self._settings.reap_seconds
