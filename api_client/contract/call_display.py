"""A tool call as a person is shown it: exactly what runs, in letters that everybody sees. Pure.

What cannot be seen, or looks like something else, is written between ``⟦`` and ``⟧``: ``⟦tab⟧``, ``⟦U+200B⟧``,
``⟦U+0020 ×2000⟧``, and these two signs themselves. A value that is not a text is behind ``⟦JSON⟧``. A secret of this
installation is ``⟦secret⟧``, where no letter of it means anything to a shell.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

#: Longest call that a person can be shown, in bytes.
MAX_SHOWN_BYTES = 16_384
#: A secret of these letters alone can be masked: nothing of it is run, expanded, or the end of a word.
_HARMLESS = re.compile(r"[\w.+/=:@%,-]+", re.ASCII)
#: Drawn as nothing or as a blank, though Unicode calls them printable letters and signs; marks are drawn into others.
_BLANK, _MARKS = frozenset("\u115f\u1160\u2800\u3164\uffa0"), frozenset({"Mn", "Me"})
_SIGNS, _TAB = frozenset("⟦⟧"), "⟦tab⟧"
#: 40 equal blanks or line ends in a row are not drawn: they would push the rest out of sight.
_ROW = re.compile(r"( |\n)\1{39,}")
_LATIN_WORD = re.compile(r"\w*[A-Za-z]\w*")


class NotShown(ValueError):
    """A call that a person cannot be shown whole; its text is the reason: ``too_long`` or ``with_secret``."""


def shown(tool: str, arguments: Mapping[str, Any], secrets: Sequence[str]) -> tuple[str, dict[str, str]]:
    """Return a call's tool and all of its arguments as they are shown; ``secrets``: the longest first.

    Raises:
        NotShown: it is too long, or names a secret that cannot be masked safely.
    """
    found = {_named(name): _value(value, secrets) for name, value in arguments.items()}
    named = _named(tool)
    if len("".join([named, *found, *found.values()]).encode()) > MAX_SHOWN_BYTES:
        raise NotShown("too_long")
    return named, found


def visible(text: str) -> str:
    """Return a text with everything written out that a reader would not see in it."""
    alien = {at for word in _LATIN_WORD.finditer(text) for at in range(*word.span()) if _is_alien(text[at])}
    letters = (_written_out(each) if at in alien or _is_unseen(each) else each for at, each in enumerate(text))
    return _ROW.sub(lambda row: f"⟦U+{ord(row[1]):04X} ×{len(row[0])}⟧", "".join(letters))


def _named(name: str) -> str:
    return re.sub(r"[\n:,()]", lambda found: _written_out(found[0]), visible(name))


def _value(value: Any, secrets: Sequence[str]) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    if len(text) > MAX_SHOWN_BYTES:
        raise NotShown("too_long")
    return _masked(text, secrets) if isinstance(value, str) else f"⟦JSON⟧ {_masked(text, secrets)}"


def _masked(text: str, secrets: Sequence[str]) -> str:
    named = [secret for secret in secrets if secret in text]
    if not named:
        return visible(text)
    if not all(map(_HARMLESS.fullmatch, named)):
        raise NotShown("with_secret")
    return "⟦secret⟧".join(map(visible, re.split("|".join(map(re.escape, named)), text)))


def _is_unseen(letter: str) -> bool:
    if " " <= letter <= "~" or letter == "\n":
        return False
    return letter in _SIGNS or letter in _BLANK or not letter.isprintable() or unicodedata.category(letter) in _MARKS


def _is_alien(letter: str) -> bool:
    """Return whether it is a letter of another alphabet, such as a Cyrillic a among Latin ones."""
    return letter.isalpha() and not unicodedata.name(letter, "").startswith("LATIN ")


def _written_out(letter: str) -> str:
    return _TAB if letter == "\t" else f"⟦U+{ord(letter):04X}⟧"
