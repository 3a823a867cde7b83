"""Backups of a whole installation: one archive with the store at one moment, and the files that belong to it."""

COMMANDS = {
    "backup": (
        "worker.plugins.backup.backing_up:backup",
        "Save store, sessions, phases, keys and settings into one archive.",
    ),
    "restore": ("worker.plugins.backup.backing_up:restore", "Bring a backup into an empty installation."),
}
