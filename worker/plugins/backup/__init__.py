"""Back up a whole installation into one archive with a snapshot of the store and the files that belong to it."""

COMMANDS = {
    "backup": (
        "worker.plugins.backup.backing_up:backup",
        "Save store, sessions, phases, keys and settings into one archive.",
    ),
    "restore": ("worker.plugins.backup.backing_up:restore", "Bring a backup into an empty installation."),
}
