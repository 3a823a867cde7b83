"""Session templates (ADR-034, templates/consultant/session.md.j2): ours, and how settings name one."""

from __future__ import annotations

import functools
from pathlib import Path

#: What a setting may say besides a path: a shipped one, by language, or no template at all.
SHIPPED = ("de", "en")
NONE = "none"

_FOLDER = Path(__file__).with_name("templates")


@functools.cache
def shipped(locale: str) -> str:
    """The text of our template in this language; in English for one that we do not speak."""
    name = locale if locale in SHIPPED else "en"
    return (_FOLDER / f"session.{name}.md.j2").read_text(encoding="utf-8")
