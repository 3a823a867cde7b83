"""The wire both sides speak: turns, events, key names, task names, settings. Standard library only.

``api_client`` and ``worker`` meet here and nowhere else, so either side can be read, tested and replaced alone.
"""
