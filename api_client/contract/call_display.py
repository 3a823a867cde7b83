"""Show a tool call to a person exactly as it will run, in characters that everybody sees.

Invisible or look-alike characters are written between ``⟦`` and ``⟧``, such as ``⟦U+200B⟧``. A value that is not a
string follows ``⟦JSON⟧``.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

#: Longest call that is shown to a person, in bytes.
MAX_SHOWN_BYTES = 16_384
#: A secret may be masked if it has only these characters: none of them is executed, expanded, or ends a word.
_HARMLESS = re.compile(r"[\w.+/=:@%,-]+", re.ASCII)
#: Printable characters that are drawn as nothing or as a blank, and categories that combine with other characters.
_BLANK, _MARKS = frozenset("\u115f\u1160\u2800\u3164\uffa0"), frozenset({"Mn", "Me"})
_SIGNS, _TAB = frozenset("⟦⟧"), "⟦tab⟧"
#: 40 or more equal blanks or line ends in a row are abbreviated.
_ROW = re.compile(r"( |\n)\1{39,}")
_LATIN_WORD = re.compile(r"\w*[A-Za-z]\w*")


class CallNotShowable(ValueError):
    """Raised when a tool call cannot be shown completely. The message is ``too_long`` or ``with_secret``."""


def display_call(tool: str, arguments: Mapping[str, Any], secrets: Sequence[str]) -> tuple[str, dict[str, str]]:
    """Return a tool call's name and arguments, escaped so that a person can read them safely.

    Pass ``secrets`` longest first. Raises ``CallNotShowable`` if the call is too long or contains a secret that cannot
    be masked safely.
    """
    found = {_display_name(name): _display_value(value, secrets) for name, value in arguments.items()}
    named = _display_name(tool)
    if len("".join([named, *found, *found.values()]).encode()) > MAX_SHOWN_BYTES:
        raise CallNotShowable("too_long")
    return named, found


def escape_invisible(text: str) -> str:
    """Replace each invisible or misleading character in a text by a readable escape such as ``⟦U+200B⟧``."""
    alien = {at for word in _LATIN_WORD.finditer(text) for at in range(*word.span()) if _is_foreign_letter(text[at])}
    letters = (_spell_out(each) if at in alien or _is_invisible(each) else each for at, each in enumerate(text))
    return _ROW.sub(lambda row: f"⟦U+{ord(row[1]):04X} ×{len(row[0])}⟧", "".join(letters))


def _display_name(name: str) -> str:
    return re.sub(r"[\n:,()]", lambda found: _spell_out(found[0]), escape_invisible(name))


def _display_value(value: Any, secrets: Sequence[str]) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    if len(text) > MAX_SHOWN_BYTES:
        raise CallNotShowable("too_long")
    return _mask_secrets(text, secrets) if isinstance(value, str) else f"⟦JSON⟧ {_mask_secrets(text, secrets)}"


def _mask_secrets(text: str, secrets: Sequence[str]) -> str:
    named = [secret for secret in secrets if secret in text]
    if not named:
        return escape_invisible(text)
    if not all(map(_HARMLESS.fullmatch, named)):
        raise CallNotShowable("with_secret")
    return "⟦secret⟧".join(map(escape_invisible, re.split("|".join(map(re.escape, named)), text)))


def _is_invisible(letter: str) -> bool:
    if " " <= letter <= "~" or letter == "\n":
        return False
    return letter in _SIGNS or letter in _BLANK or not letter.isprintable() or unicodedata.category(letter) in _MARKS


def _is_foreign_letter(letter: str) -> bool:
    return letter.isalpha() and not unicodedata.name(letter, "").startswith("LATIN ")


def _spell_out(letter: str) -> str:
    return _TAB if letter == "\t" else f"⟦U+{ord(letter):04X}⟧"
