"""The owner behind a key, a name or a user: what records keep instead of it. Imports nothing of the web."""

from __future__ import annotations

import hashlib


def owner_of_key(key: str) -> str:
    """The owner a key of HELIX_API_KEYS stands for."""
    return _owner(b"helix-owner", key)


def owner_of_name(name: str) -> str:
    """The owner that keys in the file name."""
    return _owner(b"helix-owner-name", name)


def owner_of_user(owner: str, user: str) -> str:
    """One of the users a key speaks for."""
    return _owner(b"helix-owner-user", f"{owner}\0{user}")


def _owner(kind: bytes, text: str) -> str:
    return hashlib.sha256(kind + b"\0" + text.encode("utf-8", "surrogatepass")).hexdigest()[:32]
