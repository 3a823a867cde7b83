"""The step marker is a note between the agent and us. It never shows in an answer (DESIGN section 6)."""

from __future__ import annotations

import re

#: Bounded, so that no text makes the search slow.
_MARKER = re.compile(r"<!--[ \t]{0,64}STEP[ \t]{0,64}:[^\n>]{0,200}-->", re.IGNORECASE)
#: The pieces of a marker, each of which may be the last that has come so far.
_PIECES = ("!", "-", r"-[ \t]{0,64}", "S", "T", "E", r"P[ \t]{0,64}", ":")


def _beginning() -> re.Pattern[str]:
    """A marker, or what could become one when more text comes: a text that is still growing is shown up to here."""
    rest = r"[^\n>]{0,202}\Z|[^\n>]{0,200}-->"
    for piece in reversed(_PIECES):
        rest = rf"\Z|{piece}(?:{rest})"
    return re.compile(f"<(?:{rest})", re.IGNORECASE)


_BEGINNING = _beginning()
_FENCE = re.compile(r"[ \t>]{0,32}(?:[-*+][ \t]{1,4})?(`{3,}|~{3,})(.*)")


def without_marker(text: str) -> str:
    """The answer without its step markers. Markers inside code are text; everything else stays byte for byte.

    Source of the marker: ADR-038, section "Step Marker Validator".
    """
    if not _MARKER.search(text):
        return text
    kept: list[str] = []
    fence = ""
    for line in text.split("\n"):
        fence, in_code = _fence_after(fence, line)
        shown = line if in_code else _strip(line)
        if shown.strip() or not line.strip():
            kept.append(shown)
    result = "\n".join(kept)
    return result.rstrip() if len(result) < len(text) else result


def _fence_after(fence: str, line: str) -> tuple[str, bool]:
    """The fence that is open after ``line`` ('' when none is), and whether the line itself is code."""
    match = _FENCE.match(line)
    if fence:
        closes = match and match[1].startswith(fence) and not match[2].strip()
        return ("" if closes else fence), True
    opens = match and not (match[1][0] == "`" and "`" in match[2])
    return (match[1], True) if match and opens else ("", False)


def _strip(line: str) -> str:
    """The line without markers; one behind an odd number of back quotes is inside inline code."""
    parts: list[str] = []
    end = ticks = 0
    for match in _MARKER.finditer(line):
        ticks += line.count("`", end, match.start())
        parts.append(line[end : match.start() if ticks % 2 == 0 else match.end()])
        end = match.end()
    return "".join([*parts, line[end:]])


class VisibleText:
    """A growing answer as its reader may see it: no marker, and nothing that could turn out to be the start of one.

    What ``feed`` has returned, joined, always begins ``without_marker`` of the whole text. The rest of a line behind a
    possible marker waits for the line's end, trailing white space for the text behind it: whether they stay depends
    on what follows.
    """

    def __init__(self) -> None:
        self._fence = ""
        self._line = ""  # the last line so far, raw
        self._given = self._scanned = 0  # characters of it that are shown, and that hold no marker
        self._begun = False  # a line is shown already, so the next one starts with a line end
        self._space = ""

    def feed(self, piece: str) -> str:
        """Add a piece of the raw text; returns what the reader sees more."""
        self._line += piece
        *whole, self._line = self._line.split("\n") if "\n" in piece else [self._line]
        parts = [self._closed(line) for line in whole]
        text = self._space + "".join(parts) + self._open_line()
        seen = text.rstrip()
        self._space = text[len(seen) :]
        return seen

    def _closed(self, line: str) -> str:
        self._fence, in_code = _fence_after(self._fence, line)
        shown = line if in_code else _strip(line)
        more = self._shown(shown[self._given :]) if shown.strip() or not line.strip() else ""
        self._given = self._scanned = 0
        return more

    def _open_line(self) -> str:
        found = _BEGINNING.search(self._line, self._scanned)
        self._scanned = found.start() if found else len(self._line)
        more = self._line[self._given : self._scanned]
        if not (self._given or more.strip()):
            return ""  # a line of white space and markers goes away as a whole
        more = self._shown(more)
        self._given = self._scanned
        return more

    def _shown(self, more: str) -> str:
        line_end = "\n" if self._begun and not self._given else ""
        self._begun = True
        return line_end + more
