"""The operator's token of an installation without keys: a file that only its user can read, below HELIX_ROOT/.helix.

Without keys the relay serves this machine, and a client that connects may be a stranger behind a proxy that adds no
header. So what an operator does there needs this token. ``turns up`` and ``turns web`` make it; with keys it opens
nothing.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from api_client.web.identity.keys import PREFIX, hash_of


def make_token(path: Path) -> str:
    """The installation's token; made at the first call, also when two processes ask at once.

    Raises:
        OSError: it can be neither read nor made.
    """
    path.parent.mkdir(mode=0o700, exist_ok=True)
    if not read_token(path):
        draft = path.with_name(f"{path.name}.{os.getpid()}")
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(f"{PREFIX}local-{secrets.token_urlsafe(32)}\n")
        try:
            os.link(draft, path)  # unlike a rename it never replaces what another process made meanwhile
        except FileExistsError:
            if not read_token(path):  # broken or empty: it opens nothing
                draft.replace(path)
        draft.unlink(missing_ok=True)
    path.chmod(0o600)
    return read_token(path)


def read_token(path: Path) -> str:
    """The token in the file; '' without one."""
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return ""


class LocalToken:
    """The token as a running relay knows it; a file that has changed is read again."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: tuple[int, int] | None = None
        self._hash = ""

    def hash(self) -> str:
        """The token's hash (``keys.hash_of``); '' without one."""
        try:
            found = self._path.stat()
        except OSError:
            self._seen = None
            return ""
        if self._seen != (found.st_ino, found.st_mtime_ns):
            self._seen = found.st_ino, found.st_mtime_ns
            token = read_token(self._path)
            self._hash = hash_of(token) if token else ""
        return self._hash
