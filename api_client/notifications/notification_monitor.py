"""Monitors the outbox of notifications, and stores notifications about problems that other monitors find."""

from __future__ import annotations

from collections.abc import Sequence

from api_client.contract.notification import Notification
from api_client.notifications.notification_keys import NotificationKeys
from api_client.notifications.outbox import NotificationOutbox
from api_client.store import Store
from api_client.store.module_log import ModuleLog
from api_client.workers.monitor import Gauge, Monitor, Trouble, TroubleReporter

log = ModuleLog(__name__)


class NotificationMonitor(Monitor):
    """Reports how many notifications are waiting to be sent and how many could not be delivered."""

    name, part = "notifications", "notifications"

    def __init__(self, outbox: NotificationOutbox) -> None:
        self._outbox = outbox

    async def read_gauges(self) -> Sequence[Gauge]:
        """Return the number of waiting notifications and the number of undeliverable ones as metrics."""
        counts = await self._outbox.counts()
        return [
            Gauge(
                "helix_notifications_waiting",
                "Notifications (webhooks, command) that are to be sent.",
                {"": counts.waiting},
            ),
            Gauge(
                "helix_notifications_given_up",
                "Notifications given up after a day: turns notifications dead.",
                {"": counts.given_up},
            ),
        ]


class NotificationReporter(TroubleReporter):
    """Stores a notification about each problem that a monitor finds, so that a worker sends the notification."""

    def __init__(self, store: Store, outbox: NotificationOutbox) -> None:
        self._store, self._outbox = store, outbox
        self._url = store.settings.public_url.rstrip("/")

    async def claim_search(self, name: str, seconds: float) -> bool:
        """Return True if this process may run the monitor ``name`` now. No other process may for about ``seconds``.

        The result is False if another process has just run the monitor, or if no worker sends notifications.
        """
        if not await self._outbox.is_sending():
            return False
        key = NotificationKeys(self._store.namespace).watched(name)
        return bool(await self._store.await_reply(self._store.redis.set(key, "1", nx=True, px=int(seconds * 900))))

    async def report_trouble(self, trouble: Trouble) -> None:
        """Store a notification about a problem. With the public URL set, it contains a link to the problem's page."""
        data = {**trouble.data, **({"url": self._url + trouble.page} if self._url else {})}
        notification = Notification(kind=trouble.kind, subject=trouble.subject, at=trouble.at, data=data)
        if await self._outbox.put(notification):
            log.warning("notification.put", kind=notification.kind, subject=notification.subject)
