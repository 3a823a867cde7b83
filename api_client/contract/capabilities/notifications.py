"""Catalogue entries for notifications."""

NOTICE_KINDS = {
    "notice.test": "`turns notices test` sent it.",
}
FAILPOINTS = {
    "notice.due": "notifier: a notice is to be sent, no target has it",
    "notice.taken": "notifier: a target took a notice, the outbox does not know",
}
PLUGINS = {
    "commands": {"notices": "notifications"},
    "watchers": {"notifier": "notifications"},
    "checks": {"notices": "notifications"},
}
