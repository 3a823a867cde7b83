"""Reading many turns at once: unfinished ones, finished ones page by page, what matches a search.

Nothing here looks through the store's keys: unfinished turns are in ``due``, finished ones in ``finished``. What
matches is decided where the records are, a few hundred records a command, so that no command holds the store up.
"""
