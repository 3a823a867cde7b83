"""The monitor of the outbox, and the reporter that stores notifications about problems."""

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
    """Reports how many notifications are waiting to be sent and how many are undeliverable."""

    name, part = "notifications", "notifications"

    def __init__(self, outbox: NotificationOutbox) -> None:
        self._outbox = outbox

    async def read_gauges(self) -> Sequence[Gauge]:
        """Return metrics with the numbers of waiting and of undeliverable notifications."""
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
    """Stores a notification for each reported problem, if any worker sends notifications."""

    def __init__(self, store: Store, outbox: NotificationOutbox) -> None:
        self._store, self._outbox = store, outbox
        self._url = store.settings.public_url.rstrip("/")

    async def claim_search(self, name: str, seconds: float) -> bool:
        """Return True if this process should search for problems now: no other does, and notifications are being sent.

        ``name`` is the monitor's name, ``seconds`` the time until the next search.
        """
        if not await self._outbox.is_sending():
            return False
        key = NotificationKeys(self._store.namespace).watched(name)
        return bool(await self._store.await_reply(self._store.redis.set(key, "1", nx=True, px=int(seconds * 900))))

    async def report_trouble(self, trouble: Trouble) -> None:
        """Store a notification about a problem, with the address of its web page if known."""
        data = {**trouble.data, **({"url": self._url + trouble.page} if self._url else {})}
        notification = Notification(kind=trouble.kind, subject=trouble.subject, at=trouble.at, data=data)
        if await self._outbox.put(notification):
            log.warning("notification.put", kind=notification.kind, subject=notification.subject)
