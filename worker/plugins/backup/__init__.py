"""Backs up a whole installation into one archive: a snapshot of the store and the files that belong to it."""

COMMANDS = {
    "data.backup": (
        "worker.plugins.backup.backup_commands:backup",
        "Save store, sessions, phases, keys and settings into one archive.",
    ),
    "data.restore": ("worker.plugins.backup.backup_commands:restore", "Bring a backup into an empty installation."),
}
