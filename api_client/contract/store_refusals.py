"""Explanations of the errors with which a store refuses commands, found by the first word of the reply."""

from __future__ import annotations

import re
from dataclasses import dataclass

REFUSALS = {
    "MISCONF": (
        "the store refuses writes because its disk does not take them",
        "make room on the store's disk or repair it; turns continue by themselves",
    ),
    "OOM": (
        "the store refuses writes because its memory is full",
        "raise maxmemory of the server, then keep less: HELIX_RETENTION_SECONDS, `turns data gc`",
    ),
    "READONLY": (
        "the store is a replica and takes no writes",
        "name the master in REDIS_URL, or use sentinel:// (docs/operations.md)",
    ),
    "NOAUTH": ("the store asks for a password", "put it into the address: REDIS_URL=redis://user:password@host:6379/0"),
    "WRONGPASS": ("the store does not accept this user and password", "correct user and password in REDIS_URL"),
    "NOPERM": (
        "the store's user may not do this",
        "give the user the commands and keys of its role in compose/broker/users.acl",
    ),
    "LOADING": (
        "the store is still reading its data from disk",
        "wait until it has read them; `redis-cli info persistence` shows how far it is",
    ),
    "MASTERDOWN": ("the store is a replica that has lost its master", "start the master, or let Sentinel name another"),
    "NOREPLICAS": (
        "the store refuses writes because too few replicas are connected",
        "start a replica, or lower min-replicas-to-write",
    ),
    "BUSY": (
        "the store is held up by a script",
        "find it with `redis-cli slowlog get`; `redis-cli script kill` ends it",
    ),
}
_KINDS = {
    "OutOfMemoryError": "OOM",
    "ReadOnlyError": "READONLY",
    "BusyLoadingError": "LOADING",
    "NoPermissionError": "NOPERM",
    "MasterDownError": "MASTERDOWN",
}
_WORD = re.compile(rf"(?:^|: )({'|'.join(REFUSALS)})\b")
#: Part of a password-protected server's reply to a connection without a password, which ends the connection.
_GREETING = "client already authenticated"
_MOST = 200


@dataclass(frozen=True, slots=True)
class StoreRefusal:
    """A reason why the store refused a command, with advice for operators."""

    word: str
    message: str
    fix: str
    said: str = ""

    def __str__(self) -> str:
        return f"{self.message} ({self.word}{f': {self.said}' if self.said else ''})"


def find_refusal(error: BaseException) -> StoreRefusal | None:
    """Return why the store refused a command, or None if the error is not a refusal."""
    text = str(error)
    kind, found = type(error).__name__, _WORD.search(text)
    word = _KINDS.get(kind, found[1] if found else "")
    if kind == "AuthenticationError" or _GREETING in text:
        word = "WRONGPASS" if "invalid" in text.lower() else "NOAUTH"
    if word not in REFUSALS:
        return None
    rest = text.rpartition("caused error: ")[2].removeprefix(word).strip()
    return StoreRefusal(word, *REFUSALS[word], said=" ".join(rest.split())[:_MOST])
