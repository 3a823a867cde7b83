"""The store: connections of all kinds, commands, the audit log, and logging.

Attributes:
    Store: the store as one event loop uses it.
    heed_cancellation: a check for loops that ask the store.
"""

from api_client.store.store import Store, heed_cancellation

__all__ = ["Store", "heed_cancellation"]
