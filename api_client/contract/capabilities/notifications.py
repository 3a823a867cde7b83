"""Catalogue entries for notifications."""

MONITORS = {"notifications": "api_client.notifications.notification_monitor:NotificationMonitor"}
NOTIFICATION_KINDS = {"notification.test": "`turns notifications test` sent it."}
FAILPOINTS = {
    "notification.due": "notifier: a notification is to be sent, no target has it",
    "notification.taken": "notifier: a target took a notification, the outbox does not know",
}
PLUGINS = {
    "commands": {"notifications": "notifications"},
    "watchers": {"notifier": "notifications"},
    "checks": {"notifications": "notifications"},
}
