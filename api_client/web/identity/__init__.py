"""Identifies the caller by the API key. The owner of a turn is a hash, never a key or a user's name.

Without keys, the relay serves only this machine: it refuses requests whose headers show a proxy or a foreign host name.
"""
