"""Reads many turns at once: unfinished turns, pages of finished turns, and search results.

No command scans all keys. Lua matches a few hundred records per command, so that no command blocks the store.
"""
