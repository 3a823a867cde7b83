"""Sending notices, in the second loop of a worker process. One process of an installation sends at a time.

It may die at any line: what it put is in the outbox, and what a target took stays there until the store knows it. So a
target may get a notice twice, with the same id, and none is lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from api_client.contract.settings import Settings
    from api_client.store.connection import OneConnection
    from worker.plugins.notifications.notifier import Notifier

COMMANDS = {
    "notices": (
        "worker.plugins.notifications.notice_commands:notices",
        "Calls for help to webhooks and your command: list, dead, resend, test.",
    ),
}


def notify(settings: Settings, connection: OneConnection) -> Notifier | None:
    """Return the sender of notices, if there is anybody to tell."""
    if not (settings.webhook_urls or settings.notice_command):
        return None
    from worker.plugins.notifications.notifier import Notifier

    return Notifier(settings, connection)
