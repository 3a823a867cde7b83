"""Catalogue entries for notifications."""

MONITORS = {"notifications": "api_client.notifications.notification_monitor:NotificationMonitor"}
NOTIFICATION_KINDS = {"notification.test": "`turns notifications test` sent it."}
PLUGINS = {
    "commands": {"notifications": "notifications"},
    "watchers": {"notifier": "notifications"},
    "checks": {"notifications": "notifications"},
}
