"""The reaper: finds the turns that no worker holds. Every worker process has one; any number do no harm.

It announces what was not claimed, takes turns from workers that died or froze, and ends what was cancelled. It takes
nothing before reapers have looked without a pause for one lease, nor when the store's clock has just jumped: after an
outage every holder gets the chance to beat first (``calm``).
"""

from __future__ import annotations

import time
from collections.abc import Callable

import structlog
from redis.exceptions import ResponseError

from api_client.contract.failpoints import reach
from api_client.contract.keys import Keys
from api_client.contract.settings import Settings
from api_client.contract.tasks import Link
from worker.poller import Poller
from worker.turns.leases.backlog import Backlog
from worker.turns.leases.calm import Calm, Clocks
from worker.turns.record.claim import Reaped
from worker.turns.record.ledger import Ledger
from worker.turns.record.store import connect, stored_shards

log = structlog.get_logger()

#: Due turns that are looked at in one look, of each shard, and those of them that are taken, announced or ended.
_LOOK_AT_MOST, _REAP_AT_MOST = 1000, 100


class Reaper:
    """A thread that looks at due turns.

    It reports to ``lost`` the Celery task from which it took a turn, and that task's worker, and to ``ended`` the id
    of a turn that it ended.
    """

    def __init__(
        self,
        settings: Settings,
        worker: str,
        announce: Callable[[Link, str, str], None],
        lost: Callable[[str, str], object] = lambda task_id, worker: None,
        ended: Callable[[str], object] = lambda turn_id: None,
    ) -> None:
        self._settings = settings
        store = connect(settings, answer_seconds=2.0, resends=0)
        self._ledger = Ledger(settings, worker, store)
        self._announce = announce
        self._lost, self._ended = lost, ended
        self._calm = Calm(settings, store)
        self._backlog = Backlog(settings, store)
        self._clocks = Clocks(settings.lease_seconds)
        self._known_shards = 0
        self._idle = self._left_out = False
        self._poller = Poller("reaper", self.poll, settings.reap_seconds)

    def start(self) -> None:
        """Start the thread."""
        self._poller.start()

    def close(self) -> None:
        """Stop the thread."""
        self._poller.close()

    def poll(self) -> None:
        """Look, but leave out every other look while there is no unfinished turn: idle workers cost the store little.

        Raises:
            RedisError: the store does not answer.
        """
        self._left_out = self._idle and not self._left_out
        if not self._left_out:
            self._idle = False  # should the store not answer, nobody knows
            self.look()

    def look(self) -> None:
        """Look once at everything that is due. While nothing is to be done, that is one command a shard.

        The calm time may begin again with the first turn: the leases of turns that were not there yet end after it.

        Raises:
            RedisError: the store does not answer.
        """
        self._idle = self._backlog.empty([Keys(self._settings.namespace, shard) for shard in range(self._shards())])
        if self._idle:
            self._clocks.rest()
            return
        now, calm_seconds = self._calm.look()
        steady = self._clocks.look(time.monotonic(), now)
        may_take = steady and calm_seconds >= self._settings.lease_seconds
        for shard in range(self._shards()):
            if self._clocks.jumped_back:
                log.warning("reaper.clock_set_back", shard=shard)
                self._ledger.recall(shard)
            self._look_at(Keys(self._settings.namespace, shard), int(now * 1000), may_take=may_take)
            self._ledger.fold(shard)

    def _look_at(self, keys: Keys, now: int, *, may_take: bool) -> None:
        """Look at what is due in a shard. Those whose announcements still wait hold up no other."""
        due = self._backlog.due(keys, now, _LOOK_AT_MOST)
        others = self._backlog.put_off(keys, due, now)
        for turn_id in [turn_id for turn_id, _ in due if turn_id in others][:_REAP_AT_MOST]:
            try:
                self._handle(turn_id, self._ledger.reap(turn_id, may_take=may_take))
            except (ResponseError, ValueError) as error:
                self._ledger.put_aside(turn_id, error)

    def _shards(self) -> int:
        """How many shards the store has, whatever HELIX_SHARDS says: turns of each must be looked at."""
        self._known_shards = self._known_shards or stored_shards(self._settings)
        return self._known_shards or self._settings.shards

    def _handle(self, turn_id: str, found: Reaped) -> None:
        if found.what in {"announce", "finished"}:
            task_id, worker = self._ledger.lost_task(turn_id)
            if task_id:
                self._lost(task_id, worker)
        if found.what == "announce":
            reach("turn.reaped")
            log.info("turn.announced", turn_id=turn_id, link=found.link)
            self._announce(Link.parse(found.link), turn_id, found.session_id)
        elif found.what == "interrupt":
            self._ledger.cancel(found.head, found.session_id)
        elif found.what == "finished":
            log.warning("turn.given_up", turn_id=turn_id, outcome=found.outcome)
            if found.head and (link := self._ledger.next_link(found.head)):
                self._announce(link, found.head, found.session_id)
            self._ended(turn_id)
