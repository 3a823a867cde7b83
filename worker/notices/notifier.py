"""The thread of a worker process that sends notices. One process of an installation sends at a time.

It may die at any line: what it put is in the outbox, and what a target took stays there until the store knows it. So a
target may get a notice twice, with the same id, and none is lost.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import structlog
from redis.exceptions import RedisError

from api_client.contract.failpoints import reach
from api_client.contract.settings import Settings
from api_client.contract.values.notices import Entry
from worker.notices.gathering import gather
from worker.notices.outbox import Outbox
from worker.notices.outgoing import NotSent
from worker.notices.targets import deliver, shown, targets, wanted
from worker.poller import Poller
from worker.turns.record.store import connect

log = structlog.get_logger()

_LOOK_SECONDS = 1.0
#: So many are sent at the same time, and read from the outbox at once.
_AT_ONCE, _BATCH = 8, 64


class Notifier:
    """Finds what to call about and sends it. Without a target it does nothing."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._targets = targets(settings)
        self._store = connect(settings, answer_seconds=2.0, resends=0)
        self._outbox = Outbox(settings.namespace, self._store)
        self._poller = Poller("notifier", self.look, _LOOK_SECONDS)
        self._senders = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="notice")

    def start(self) -> None:
        """Start the thread, where there is a target."""
        if self._targets:
            self._poller.start()

    def close(self) -> None:
        """Stop: what is not sent stays in the outbox."""
        self._poller.close()
        self._senders.shutdown(wait=False, cancel_futures=True)
        if self._poller.started:
            try:
                self._outbox.leave()
            except RedisError as error:
                log.info("notices.not_left", error=type(error).__name__)

    def look(self) -> None:
        """One round: find what is new, and send all that is due. Raises ``RedisError``."""
        if not self._outbox.may_send():
            return
        gather(self._settings, self._store, self._outbox)
        while not self._poller.closing.is_set() and self._outbox.may_send():
            due = self._outbox.due(_BATCH)
            if not due:
                break
            for _ in self._senders.map(self._send, due):
                pass
        self._outbox.forget_old()

    def _send(self, entry: Entry) -> None:
        if not wanted(self._settings, entry.kind):  # a relay put it, which does not know who wants what
            self._outbox.sent(entry)
            return
        taken: list[str] = []
        problems: list[str] = []
        for target in self._targets:
            if target in entry.taken:
                continue
            if not self._outbox.may_send():
                return  # this process was away for too long, and another one sends
            reach("notice.due")
            try:
                deliver(self._settings, target, entry)
                taken.append(target)
                reach("notice.taken")
            except NotSent as error:
                problems.append(f"{shown(target)}: {error}")
        if not problems:
            self._outbox.sent(entry)
            log.info("notice.sent", notice=entry.notice_id, kind=entry.kind, tries=entry.tries + 1)
            return
        dead = self._outbox.failed(entry, taken, "; ".join(problems))
        if dead:
            log.error("notice.given_up", notice=entry.notice_id, kind=entry.kind, error=problems[0])
        else:
            log.warning("notice.not_taken", notice=entry.notice_id, kind=entry.kind, error=problems[0])
