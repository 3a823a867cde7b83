"""A session on disk: its folder and those of its deliveries, which workers write and relays read, and its template."""

from __future__ import annotations

import re
from functools import cache, lru_cache
from pathlib import Path

from api_client.contract.keys import session_digest

_SAFE_NAME = re.compile(r"[A-Za-z0-9._-]{1,100}", re.ASCII)


@lru_cache(maxsize=256)  # asked several times in each run
def session_directory(sessions_dir: Path, session_id: str) -> Path:
    """The session's folder. An id that is not a plain name is hashed: it never leads elsewhere."""
    plain = _SAFE_NAME.fullmatch(session_id) and not session_id.startswith(".")
    return sessions_dir / (session_id if plain else f"session-{session_digest(session_id)}")


def delivery_name(turn_id: str, attempt: int, delivery: int) -> str:
    """The name of a delivery's folder. Turns of one session count their attempts alike, so the turn is part of it.

    Raises ``ValueError``: the turn id is not a plain name.
    """
    name = f"{turn_id}-{attempt}-{delivery}"
    if not _SAFE_NAME.fullmatch(name):
        raise ValueError(f"not a turn id: {turn_id[:80]!r}")
    return name


def repaired_name(delivery: str) -> str:
    """The folder beside a delivery's with the files of its accepted answer that its agent did not write so."""
    return f"{delivery}.repaired"


#: The template (ADR-034, templates/consultant/session.md.j2) that a setting may name besides a path: a shipped one, by
#: language, or none at all.
SHIPPED = ("de", "en")
NONE = "none"

_FOLDER = Path(__file__).with_name("templates")


@cache
def shipped(locale: str) -> str:
    """The text of our template in this language; in English for one that we do not speak."""
    name = locale if locale in SHIPPED else "en"
    return (_FOLDER / f"session.{name}.md.j2").read_text(encoding="utf-8")
