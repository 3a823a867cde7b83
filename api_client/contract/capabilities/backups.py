"""Catalogue entries for backups."""

PLUGINS = {"commands": {"data.backup": "backup", "data.restore": "backup"}}
