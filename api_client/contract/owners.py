"""Owner ids: hashes that stand for API keys, key names and users in records."""

from __future__ import annotations

import hashlib
import re

_HASH = re.compile(r"[0-9a-f]{32}")
#: Owner of everything without a key: the command line, and a machine without keys.
LOCAL_OWNER = "local"


def owner_of_key(key: str) -> str:
    """Return the owner id for an API key in the setting HELIX_API_KEYS."""
    return _hash_owner(b"helix-owner", key)


def owner_of_name(name: str) -> str:
    """Return the owner id for all API keys with this name in the keys file."""
    return _hash_owner(b"helix-owner-name", name)


def owner_of_user(owner: str, user: str) -> str:
    """Return the owner id for a user on whose behalf an application's API key acts."""
    return _hash_owner(b"helix-owner-user", f"{owner}\0{user}")


def parse_owner(text: str) -> str:
    """Convert an operator's input (a key's name, an owner id, or a displayed owner) to an owner id."""
    last = text.rpartition("/")[2]
    return last if _HASH.fullmatch(last) else text if text in {"", LOCAL_OWNER} else owner_of_name(text)


def format_owner(owner: str, holder: str) -> str:
    """Format an owner for operators: the key's name, and the owner id if the key serves several users.

    ``holder`` is the owner that the turn's key names; empty without a key.
    """
    return f"{holder}/{owner}" if holder and owner_of_name(holder) != owner else holder or owner


def _hash_owner(kind: bytes, text: str) -> str:
    return hashlib.sha256(kind + b"\0" + text.encode("utf-8", "surrogatepass")).hexdigest()[:32]
