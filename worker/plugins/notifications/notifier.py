"""Sends notifications from a worker process; one process of an installation sends at a time."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import structlog

from api_client.contract.failpoints import pass_failpoint
from api_client.contract.notification import OutboxEntry
from api_client.contract.settings import Settings
from api_client.notifications.outbox import NotificationOutbox
from api_client.store import Store
from api_client.store.audit import AuditLog
from api_client.store.connection import SingleConnection
from worker.plugins.notifications.delivery import (
    DeliveryError,
    deliver_notification,
    is_wanted,
    list_targets,
    mask_target,
)
from worker.plugins.notifications.gathering import gather_notifications

log = structlog.get_logger()


_LOOK_SECONDS = 1.0
_AT_ONCE, _DUE_AT_ONCE = 8, 64


class Notifier:
    """Creates notifications of events, such as failed turns, and sends them to the configured targets."""

    def __init__(self, settings: Settings, connection: SingleConnection | None = None) -> None:
        self._settings = settings
        self._targets = list_targets(settings)
        self.name, self.seconds = "notifier", _LOOK_SECONDS if self._targets else 0.0
        self._store = Store(settings, connection)
        self._outbox = NotificationOutbox(self._store, AuditLog(self._store))
        self._senders = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="notification")

    async def leave(self) -> None:
        self._senders.shutdown(wait=False, cancel_futures=True)
        await self._outbox.leave()

    async def poll(self) -> None:
        """Create notifications of new events, then send all notifications that are due."""
        if not await self._outbox.may_send():
            return
        await gather_notifications(self._settings, self._store, self._outbox)
        while await self._outbox.may_send():
            due = await self._outbox.due(_DUE_AT_ONCE)
            if not due:
                break
            await asyncio.gather(*map(self._send_notification, due))
        await self._outbox.forget_old()

    async def _send_notification(self, entry: OutboxEntry) -> None:
        if not is_wanted(self._settings, entry.kind):  # relays store notifications of every kind
            await self._outbox.sent(entry)
            return
        taken: list[str] = []
        problems: list[str] = []
        for target in self._targets:
            if target in entry.taken:
                continue
            if not await self._outbox.may_send():
                return  # another process has taken over
            pass_failpoint("notification.due")
            try:
                await asyncio.get_running_loop().run_in_executor(
                    self._senders, deliver_notification, self._settings, target, entry
                )
                taken.append(target)
                pass_failpoint("notification.taken")
            except DeliveryError as error:
                problems.append(f"{mask_target(target)}: {error}")
        if not problems:
            await self._outbox.sent(entry)
            log.info("notification.sent", notification=entry.notification_id, kind=entry.kind, tries=entry.tries + 1)
            return
        dead = await self._outbox.failed(entry, taken, "; ".join(problems))
        if dead:
            log.error("notification.given_up", notification=entry.notification_id, kind=entry.kind, error=problems[0])
        else:
            log.warning(
                "notification.not_taken", notification=entry.notification_id, kind=entry.kind, error=problems[0]
            )
