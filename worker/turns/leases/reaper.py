"""The reaper: looks after turns that nobody looks after. Every worker process has one; any number do no harm.

It announces what was not claimed, takes turns from workers that died or froze, and ends what was called off. A reaper
that was itself away, or sees the store's clock jump, waits one lease before it takes anything: after an outage every
holder gets the chance to beat first.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import structlog
from redis.exceptions import RedisError, ResponseError

from api_client.contract.failpoints import reach
from api_client.contract.settings import Settings
from api_client.contract.tasks import Link
from worker.turns.record.claim import Reaped
from worker.turns.record.ledger import Ledger
from worker.turns.record.store import connect

log = structlog.get_logger()

#: A clock that moves this much against ours between two looks has jumped, in seconds.
_JUMP_SECONDS = 1.0


class Watch:
    """Whether leases may be taken now: pure, told of each look. Both clocks in seconds.

    ``jumped_back`` is True when the server's clock was set back since the look before: what is due then seems far away.
    """

    def __init__(self, lease_seconds: float, reap_seconds: float) -> None:
        self._lease = lease_seconds
        self._longest_gap = max(3 * reap_seconds, lease_seconds / 2)
        self._last: tuple[float, float] | None = None
        self._calm_since = float("-inf")
        self._lost = True
        self.jumped_back = False

    def lost(self) -> None:
        """The store did not answer, or refuses writes: what holders could not do meanwhile is not their fault."""
        self._lost = True

    def look(self, monotonic: float, server: float) -> bool:
        """One look at the store that it answered; True when leases may be taken."""
        if self._last is not None:
            passed, on_server = monotonic - self._last[0], server - self._last[1]
            self.jumped_back = on_server - passed < -_JUMP_SECONDS
            if passed > self._longest_gap or abs(on_server - passed) > _JUMP_SECONDS:
                self._lost = True
        if self._lost:
            self._calm_since = monotonic
        self._last, self._lost = (monotonic, server), False
        return monotonic - self._calm_since >= self._lease


class Reaper:
    """A thread that looks at due turns."""

    def __init__(self, settings: Settings, worker: str, announce: Callable[[Link, str, str], None]) -> None:
        self._settings = settings
        self._ledger = Ledger(settings, worker, connect(settings, answer_seconds=2.0, resends=0))
        self._announce = announce
        self._watch = Watch(settings.lease_seconds, settings.reap_seconds)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._work, name="reaper", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """Stop the thread."""
        self._closing.set()

    def _work(self) -> None:
        away = False
        while not self._closing.wait(self._settings.reap_seconds):
            try:
                self.look()
                if away:
                    away = False
                    log.info("reaper.store_back")
            except RedisError as error:
                self._watch.lost()
                if not away:  # once, however long it lasts
                    away = True
                    log.warning("reaper.store_away", error=type(error).__name__)
            except Exception:
                # Whatever it was: without this thread, turns of dead workers would stay where they are.
                log.exception("reaper.look_failed")

    def look(self) -> None:
        """Look once at everything that is due.

        Raises:
            RedisError: the store does not answer.
        """
        may_take = self._watch.look(time.monotonic(), self._ledger.server_time())
        for shard in range(self._settings.shards):
            if self._watch.jumped_back:
                log.warning("reaper.clock_set_back", shard=shard)
                self._ledger.recall(shard)
            for turn_id in self._ledger.due(shard):
                try:
                    self._handle(turn_id, self._ledger.reap(turn_id, may_take=may_take))
                except (ResponseError, ValueError) as error:
                    self._ledger.put_aside(turn_id, error)

    def _handle(self, turn_id: str, found: Reaped) -> None:
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
