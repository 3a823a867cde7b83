"""The owner behind a key, a name or a user: what records keep instead of it."""

from __future__ import annotations

import hashlib
import re

_HASH = re.compile(r"[0-9a-f]{32}")
#: The owner of everything that comes without a key: from the command line, and on a machine without keys.
LOCAL_OWNER = "local"


def owner_of_key(key: str) -> str:
    """The owner a key of HELIX_API_KEYS represents."""
    return _owner(b"helix-owner", key)


def owner_of_name(name: str) -> str:
    """The owner that keys in the file name."""
    return _owner(b"helix-owner-name", name)


def owner_of_user(owner: str, user: str) -> str:
    """One of the users a key speaks for."""
    return _owner(b"helix-owner-user", f"{owner}\0{user}")


def owner_named(said: str) -> str:
    """The owner that people name: by name, by its hash, or as ``shown_owner`` writes it."""
    last = said.rpartition("/")[2]
    return last if _HASH.fullmatch(last) else said if said in {"", LOCAL_OWNER} else owner_of_name(said)


def shown_owner(owner: str, holder: str) -> str:
    """The owner as operators read it: its name, or whose user it is.

    ``owner`` is the hash, ``holder`` the owner that the key of the turn names; empty without a key.
    """
    return f"{holder}/{owner}" if holder and owner_of_name(holder) != owner else holder or owner


def _owner(kind: bytes, text: str) -> str:
    return hashlib.sha256(kind + b"\0" + text.encode("utf-8", "surrogatepass")).hexdigest()[:32]
