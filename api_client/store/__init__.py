"""The store: how it is connected to, in all its forms, and how it is asked; what is noted of who asked it, and logged.

Attributes of this package: ``Store`` for everybody on one event loop, ``heed_cancellation`` for loops that ask it.
"""

from api_client.store.store import Store, heed_cancellation

__all__ = ["Store", "heed_cancellation"]
