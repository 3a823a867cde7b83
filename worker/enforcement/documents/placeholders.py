"""Placeholders: lines for text that was never written or was left out. Words are in ``placeholders.toml``."""

from __future__ import annotations

import html
import re

from api_client.contract.word_tables import load_word_table

_WORDS = load_word_table(__file__)
_LINES = frozenset(_WORDS["lines"])
_BEGINNING = re.compile(rf"(?:{'|'.join(map(re.escape, _WORDS['beginnings']))})(?![\w-])", re.IGNORECASE)
_LEFT_OUT = rf"\b(?:{'|'.join(map(re.escape, _WORDS['left_out']))})\b"
#: A line that marks omitted text: "(unchanged)", "[… rest as before …]", "<!-- unchanged -->".
_OMISSION = re.compile(
    rf"[ \t*_>-]{{0,8}}(?:[(\[{{\u2026]|\.{{3}}|<!--|\*|_).{{0,100}}{_LEFT_OUT}"
    r".{0,60}(?:[)\]}\u2026*_]|\.{3}|-->)[ \t\r]{0,8}$",
    re.IGNORECASE,
)
#: "The rest stays as above", bare or marked.
_REST = re.compile(
    rf"(?:der |die |das |the )?(?:rest|inhalt|content|text|section|abschnitt|alles|all)\b.{{0,60}}(?:{_LEFT_OUT}"
    r"|\bbleibt(?: so| gleich)?\b).{0,40}$",
    re.IGNORECASE,
)
#: A field of a template: "[Insert decision here]", "<your decision>", "{{ decision }}".
_FIELD = re.compile(
    r"\[(?![ xX]\])[^\[\]]{1,200}\](?![(\[:])|<[^\W\d_][^<>=/]{0,120}\s[^<>=/]{1,120}>"
    r"|\$\{[^{}]{1,200}\}|\{\{[^{}]{1,200}\}\}"
)
_LEAD = re.compile(r"(?:[-+*>#|\s]|\d{1,3}[.)](?=\s)|\[[ xX]?\](?=\s))+")
_AROUND = " \t\r\xa0()[]{}<>*_`~.,:;!?\u2026|-–—\"'„“”»«"
#: Longest placeholder, and longest text with a placeholder's beginning, in characters.
_MOST, _MOST_NOTE = 300, 80


def is_placeholder(line: str) -> bool:
    """Return True if a line is only a placeholder for text, such as "TBD" or "[Insert …]"."""
    bare = html.unescape(line).strip() if "&" in line else line.strip()
    if len(bare) > _MOST:
        return False
    bare = _LEAD.sub("", bare, count=1) if _LEAD.match(bare) else bare
    words = " ".join(bare.strip(_AROUND).split())
    if not any(char.isalnum() for char in words) or words.casefold() in _LINES:
        return True
    if _BEGINNING.match(words) and len(words) <= _MOST_NOTE:
        return True
    return bool(_FIELD.fullmatch(bare.strip(" \t*_`.")) or _REST.match(words))


def remove_placeholders(text: str) -> str:
    """Return the text without the lines that are placeholders. Blank lines stay."""
    return "\n".join(line for line in text.split("\n") if not line.strip() or not is_placeholder(line))


def omits_text(text: str) -> bool:
    """Return True if a line of the text says that other text is omitted, such as "(unchanged)"."""
    return any(_OMISSION.match(line) for line in text.split("\n") if len(line) <= _MOST)
