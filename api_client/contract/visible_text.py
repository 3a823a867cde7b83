"""Tells whether a text shows anything to its reader."""

from __future__ import annotations

import unicodedata

_PIECE_CHARS = 4_096
_INVISIBLE = frozenset({"Zs", "Zl", "Zp", "Cc", "Cf"})


def has_visible_text(text: str) -> bool:
    """Return True if a text has a character that is neither white space nor invisible."""
    for start in range(0, len(text), _PIECE_CHARS):
        for letter in set(text[start : start + _PIECE_CHARS]):
            if unicodedata.category(letter) not in _INVISIBLE:
                return True
    return False
