"""The YAML header at the beginning of an answer, as a page shows it: inside a fence. Pure.

Markdown takes the text above a line of dashes for a heading, so that a page would draw an ADR's header large.
``fenced`` puts two lines around the header and changes nothing else; ``unfenced`` takes exactly these away again, from
what a chat sends back. Four back quotes: no agent writes such a fence around a header.
"""

from __future__ import annotations

import re

_TICKS = "````"
_OPEN, _CLOSE = f"{_TICKS}yaml\n", f"\n{_TICKS}"
_KEY = r"[A-Za-z_][\w-]{0,60}[ \t]{0,9}:"
_RULE = re.compile(r"---[ \t]{0,9}\r?")
_BEGIN = re.compile(rf"\s{{0,99}}(?={_RULE.pattern}\n{_KEY})")
#: What may still become the beginning of a header when more text comes.
_MAYBE = re.compile(r"\s{0,99}(?:-{1,3}|---[ \t]{0,9}\r?(?:\n(?:[A-Za-z_][\w-]{0,60}[ \t]{0,9})?)?)?\Z")
_CLOSING = re.compile(rf"\n{_RULE.pattern}(?=\n|\Z)")
_FENCED = re.compile(rf"\s{{0,99}}(?={_OPEN}---)")
_FENCE_END = re.compile(rf"\n{_RULE.pattern}(\n{_TICKS})(?=\n|\Z)")


def fenced(text: str) -> str:
    """The text with its YAML header, if it begins with one, inside a fence."""
    begin = _BEGIN.match(text)
    end = _CLOSING.search(text, begin.end()) if begin else None
    if begin is None or end is None or _TICKS in text[begin.end() : end.end()]:
        return text
    return f"{text[: begin.end()]}{_OPEN}{text[begin.end() : end.end()]}{_CLOSE}{text[end.end() :]}"


def unfenced(text: str) -> str:
    """The text that ``fenced`` was given; also of one that was stopped inside the header."""
    begin = _FENCED.match(text)
    if begin is None:
        return text
    rest = text[begin.end() + len(_OPEN) :]
    if end := _FENCE_END.search(rest):
        rest = rest[: end.start(1)] + rest[end.end(1) :]
    return text[: begin.end()] + rest


class GrowingHeader:
    """A text that comes in pieces, its header fenced as soon as it is known to be one."""

    def __init__(self) -> None:
        self._held = ""  # what may become the beginning of a header
        self._inside = self._over = False
        self._line = ""  # the last line of the header so far

    def feed(self, piece: str) -> str:
        """Add a piece; returns what the reader sees more."""
        if self._over:
            return piece
        if self._inside:
            return self._through(piece)
        self._held += piece
        if begin := _BEGIN.match(self._held):
            self._inside, text = True, self._held
            self._held = ""
            return text[: begin.end()] + _OPEN + self._through(text[begin.end() :])
        if _MAYBE.match(self._held):
            return ""
        self._over, text = True, self._held
        return text

    def _through(self, piece: str) -> str:
        """Header text; behind its closing line, which ends with this piece or within it, the fence closes."""
        text = self._line + piece
        end = _CLOSED.search(text)
        if end is None:
            self._line = text[max(text.rfind("\n"), 0) :]
            return piece
        self._over = True
        return text[len(self._line) : end.end(1)] + _CLOSE + text[end.end(1) :]


#: The closing line with its end: before that, more of the line may come.
_CLOSED = re.compile(rf"(\n{_RULE.pattern})\n")
