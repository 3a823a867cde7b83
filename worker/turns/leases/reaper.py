"""The reaper: finds turns that no worker holds, announces or reclaims them, and ends cancelled turns.

One worker process reaps on behalf of all workers. Turns are reclaimed only after reapers have been looking for one
lease without a gap, so that every holder can renew first after an outage.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable

import structlog
from redis.exceptions import ResponseError

from api_client.contract.failpoints import pass_failpoint
from api_client.contract.settings import Settings
from api_client.contract.tasks import ChainTask, UnknownTask
from api_client.contract.turn import Turn
from api_client.store.commands import BEGUN
from api_client.store.connection import SingleConnection
from api_client.turns.record.backlog import Backlog
from api_client.turns.record.claim import ReapResult
from api_client.turns.record.grace_period import ClockComparison, GracePeriod
from api_client.turns.record.ledger import Ledger
from worker.turns.loops.threads import ShortWorkPool

log = structlog.get_logger()

#: Due turns read at once, and due turns handled at once.
_READ_AT_MOST, _REAP_AT_MOST = 1000, 100
#: Rounds left to other reapers after a failed publication.
_STEPS_BACK = 2.0
#: Seconds between two releases from the fair queue while the reaper is idle.
_KNOWN_SECONDS = 600.0


class Reaper:
    """Finds turns that no worker holds, announces their next tasks again, and ends turns that cannot continue.

    Args:
        announce: publishes a task of a turn; returns False if publishing failed. May block.
        first: publishes a task of a turn that never ran. May block.
        lost: receives the Celery task and worker of each reclaimed turn.
        ended: receives each turn that the reaper ended.
    """

    def __init__(
        self,
        settings: Settings,
        worker: str,
        announce: Callable[[ChainTask, str, str], bool | None],
        first: Callable[[ChainTask, str, str], bool | None] | None = None,
        lost: Callable[[str, str], object] = lambda task_id, worker: None,
        ended: Callable[[Turn], object] = lambda turn: None,
        connection: SingleConnection | None = None,
    ) -> None:
        self._settings = settings
        self.name, self.seconds = "reaper", settings.reap_seconds
        connection = connection or SingleConnection(settings)
        self._ledger = Ledger(settings, worker, connection)
        self._threads = ShortWorkPool(1, "reaper")
        self._announce, self._first = announce, first or announce
        self._lost, self._ended = lost, ended
        self._calm = GracePeriod(settings, connection.redis, worker)
        self._backlog = Backlog(settings, connection.redis)
        self._clocks = ClockComparison(settings.lease_seconds)
        self._idle = self._another_looks = False
        self._released_at = self._steps_back_until = float("-inf")
        self._behind = ""

    async def leave(self) -> None:
        """Do nothing when this process stops, because the reapers of other processes continue."""

    async def poll(self) -> None:
        """Announce again or end the turns that are due, for example because a lease has expired.

        While there are no unfinished turns, polls are rarer.
        """
        self._idle = False  # if the store does not answer, the backlog is unknown
        self.seconds = self._settings.reap_seconds
        await self.reap_turns()
        if self._idle:
            self.seconds = max(self.seconds, self._settings.announce_seconds - self.seconds)

    async def recall_turns(self) -> None:
        """Mark all unfinished turns as due, so that their tasks are announced again."""
        await self._ledger.recall_turns()

    async def reap_turns(self) -> None:
        """Handle all turns whose lease, waiting time or deadline has ended, unless another process is doing this."""
        if time.monotonic() < self._steps_back_until:
            return
        looked = await self._calm.register_look() if self._another_looks else None
        if looked and not looked.for_all:
            return
        self._another_looks = False
        self._idle = await self._backlog.is_empty()
        if self._idle:
            self._clocks.forget_last()
            if time.monotonic() - self._released_at > _KNOWN_SECONDS:
                await self._release_turns()
            return
        looked = looked or await self._calm.register_look()
        self._another_looks = not looked.for_all
        if self._another_looks:
            self._clocks.forget_last()
            return
        steady = self._clocks.compare_clocks(time.monotonic(), looked.now)
        may_take = steady and looked.watched_seconds >= self._settings.lease_seconds
        if time.monotonic() - self._released_at > self._settings.announce_seconds:
            await self._release_turns()
        if self._clocks.jumped_back or looked.set_back:
            log.warning("reaper.clock_set_back")
            await self._ledger.recall_turns()
        # The time limit lets other reapers see that this reaper is alive.
        until = time.monotonic() + self._settings.reap_seconds
        while await self._reap_due_turns(int(looked.now * 1000), may_take=may_take) and time.monotonic() < until:
            pass
        await self._ledger.fold_counters()

    async def _reap_due_turns(self, now: int, *, may_take: bool) -> bool:
        """Reap a batch of turns whose deadline has passed. Return True if there may be more."""
        due = await self._backlog.list_due(now, _READ_AT_MOST)
        others = await self._backlog.postpone_waiting(due, now)
        for turn_id in [turn_id for turn_id, _ in due if turn_id in others][:_REAP_AT_MOST]:
            try:
                await self._handle_turn(turn_id, await self._ledger.reap_turn(turn_id, may_take=may_take))
            except (ResponseError, ValueError) as error:
                await self._ledger.postpone_damaged_turn(turn_id, error)
        return len(due) == _READ_AT_MOST or len(others) > _REAP_AT_MOST

    async def _release_turns(self) -> None:
        behind = self._behind
        found = await self._ledger.release_turns(behind)
        for chain_task, turn_id, session_id in found.left:
            await self._publish_task(self._first, chain_task, turn_id, session_id)
        self._behind = found.places[-1] if found.places else ""
        if ended := await self._ledger.find_ended(found.places):
            log.info("reaper.places_mended", places=len(ended))
            await self._ledger.release_turns(behind, ended)
        self._released_at = time.monotonic()

    async def _handle_turn(self, turn_id: str, found: ReapResult) -> None:
        if found.what in {"announce", "finished"}:
            task_id, worker = await self._ledger.lost_task(turn_id)
            if task_id:
                self._lost(task_id, worker)
        if found.what == "announce":
            pass_failpoint("turn.reaped")
            try:
                chain_task = ChainTask.parse(found.chain_task)
            except UnknownTask as error:
                if await self._ledger.refuse_unknown_task(turn_id, found.session_id, error):
                    self._step_back()
                return
            log.info("turn.announced", turn_id=turn_id, chain_task=found.chain_task)
            await self._announce_task(chain_task, turn_id, found.session_id)
        elif found.what == "interrupt":
            await self._ledger.cancel_turn(found.head, found.session_id)
        elif found.what == "finished":
            log.warning("turn.given_up", turn_id=turn_id, outcome=found.outcome)
            if found.head and (head_task := await self._ledger.next_task(found.head)):
                await self._announce_task(head_task, found.head, found.session_id)
            if turn := await self._ledger.read_turn(turn_id):
                await self._threads.run_work(functools.partial(self._ended, turn))

    async def _announce_task(self, chain_task: ChainTask, turn_id: str, session_id: str) -> None:
        if chain_task.begins and await self._ledger.queue_turn(turn_id, session_id, chain_task) != BEGUN:
            return
        await self._publish_task(self._announce, chain_task, turn_id, session_id)

    async def _publish_task(
        self,
        publish: Callable[[ChainTask, str, str], bool | None],
        chain_task: ChainTask,
        turn_id: str,
        session_id: str,
    ) -> None:
        if await self._threads.run_work(functools.partial(publish, chain_task, turn_id, session_id)) is False:
            self._step_back()

    def _step_back(self) -> None:
        """Pause after a failed announcement, so that another worker's reaper takes over."""
        self._steps_back_until = time.monotonic() + _STEPS_BACK * self._settings.reap_seconds
