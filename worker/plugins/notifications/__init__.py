"""Sends notifications to webhooks and the operator's command."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from api_client.contract.settings import Settings
    from api_client.store.connection import SingleConnection
    from worker.plugins.notifications.notifier import Notifier

COMMANDS = {
    "notifications": (
        "worker.plugins.notifications.notification_commands:notifications",
        "List, resend, drop and test notifications.",
    )
}


def notify(settings: Settings, connection: SingleConnection) -> Notifier | None:
    """Create the object that sends notifications, or return None if no target is configured."""
    if not (settings.webhook_urls or settings.notification_command):
        return None
    from worker.plugins.notifications.notifier import Notifier

    return Notifier(settings, connection)
