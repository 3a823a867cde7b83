"""Types shared by the client and the worker: turns, events, key names, task names and settings. Standard library only.

``api_client`` and ``worker`` meet only here, so each can be read, tested and replaced alone.
"""
