"""Read many turns at once: unfinished turns, pages of finished turns, and search results.

No command scans the keys: unfinished turns are in ``due``, finished ones in ``finished``. Lua matches a few hundred
records a command, so that no command blocks the store.
"""
