"""Paths of session folders and delivery folders, and the built-in session templates."""

from __future__ import annotations

import re
from functools import cache, lru_cache
from pathlib import Path

from api_client.contract.keys import session_digest

#: Prefix of the folders of session ids that are no plain file names.
HASHED = "session-"
_SAFE_NAME = re.compile(r"[A-Za-z0-9._-]{1,100}", re.ASCII)


@lru_cache(maxsize=256)
def session_directory(sessions_dir: Path, session_id: str) -> Path:
    """Return the folder of a session. Session ids that are no plain file names are hashed."""
    plain = _SAFE_NAME.fullmatch(session_id) and not session_id.startswith(".")
    return sessions_dir / (session_id if plain else f"{HASHED}{session_digest(session_id)}")


def delivery_name(turn_id: str, attempt: int, delivery: int) -> str:
    """Return the folder name for the files of one delivery (one start of an agent for an attempt).

    Raises ``ValueError`` if the turn id is not a plain name.
    """
    name = f"{turn_id}-{attempt}-{delivery}"
    if not _SAFE_NAME.fullmatch(name):
        raise ValueError(f"not a turn id: {turn_id[:80]!r}")
    return name


def repaired_name(delivery: str) -> str:
    """Return the folder name for accepted files that were repaired after the agent had written them."""
    return f"{delivery}.repaired"


#: Templates that a setting may name besides a path (ADR-034, templates/consultant/session.md.j2): a shipped one by
#: language, or none.
SHIPPED = ("de", "en")
NONE = "none"

_FOLDER = Path(__file__).with_name("templates")


@cache
def read_shipped_template(locale: str) -> str:
    """Return the built-in session template for a language, or the English one for other languages."""
    name = locale if locale in SHIPPED else "en"
    return (_FOLDER / f"session.{name}.md.j2").read_text(encoding="utf-8")
