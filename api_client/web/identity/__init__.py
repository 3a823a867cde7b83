"""The caller: the API key decides, in one place. The owner of a turn is a hash, never a key or a user's name.

Keys come from HELIX_API_KEYS and from the file of ``turns keys``. Without either the relay serves this machine only. A
page in a browser can reach a loopback address under a foreign name, and a proxy brings in strangers; both show in the
headers and are refused.
"""
