"""Catalogue entries for backups."""

FAILPOINTS = {
    "restore.file": "restore: a file was put in its place",
    "restore.keys": "restore: some keys were copied into the store",
}
PLUGINS = {"commands": {"data.backup": "backup", "data.restore": "backup"}}
