"""Reads many turns at once, in pages, so that no command scans all keys or blocks the store."""
