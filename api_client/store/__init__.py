"""The store: connections of all kinds, commands, the audit log, and logging."""

from api_client.store.store import Store, heed_cancellation

__all__ = ["Store", "heed_cancellation"]
