"""Backups of a whole installation: one archive with the store at one moment, and the files that belong to it."""
