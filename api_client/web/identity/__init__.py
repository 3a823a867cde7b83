"""Identify the caller by its API key. The owner of a turn is a hash, never a key or a user's name.

Keys come from HELIX_API_KEYS and from the file of ``turns keys``. Without either, the relay serves this machine
only:
a browser page can reach a loopback address under a foreign name, and a proxy brings in strangers; headers reveal
both, and such requests are refused.
"""
