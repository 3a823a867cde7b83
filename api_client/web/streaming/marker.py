"""The step marker is a note between the agent and us. It never shows in an answer."""

from __future__ import annotations

import re

#: Bounded, so that no text makes the search slow. It may be broken over lines.
_MARKER = re.compile(r"<!--\s{0,64}STEP\s{0,64}:[^>]{0,200}-->", re.IGNORECASE)
#: Over how many line ends, and how many characters it has at most.
_MOST_LINE_ENDS, _MOST_CHARS = 8, 350
#: The pieces of a marker, each of which may be the last that has come so far.
_PIECES = ("!", "-", r"-\s{0,64}", "S", "T", "E", r"P\s{0,64}", ":")


def _beginning() -> re.Pattern[str]:
    """A marker, or what could become one when more text comes: a text that is still growing is shown up to here."""
    rest = r"[^>]{0,202}\Z|[^>]{0,200}-->"
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
    lines = _Lines()
    found = [whole for line in text.split("\n") for whole in lines.take(line)]
    for line, in_code in [*found, *lines.rest()]:
        shown = line if in_code else _strip(line)
        if shown.strip() or not line.strip():
            kept.append(shown)
    result = "\n".join(kept)
    return result.rstrip() if len(result) < len(text) else result


class _Lines:
    """The lines of a text, one after the other; lines that share a marker are one line with a line end in it."""

    def __init__(self) -> None:
        self._fence = ""
        self.held = ""  # lines that end inside what may be a marker, with their line ends

    def take(self, line: str) -> list[tuple[str, bool]]:
        """One more line, without its end; returns the lines that are whole now, and whether each is code."""
        line = self.held + line
        if self._goes_on(line):
            self.held = f"{line}\n"
            return []
        self.held = ""
        return self._whole(line)

    def rest(self) -> list[tuple[str, bool]]:
        """What was held back when the text ended."""
        held, self.held = self.held, ""
        return self._whole(held[:-1]) if held else []

    def _goes_on(self, line: str) -> bool:
        if line.count("\n") >= _MOST_LINE_ENDS or _fence_after(self._fence, line)[1]:
            return False
        tail = f"{line[-_MOST_CHARS:]}\n"
        return any(found.end() == len(tail) for found in _BEGINNING.finditer(tail))

    def _whole(self, line: str) -> list[tuple[str, bool]]:
        first, line_end, rest = line.partition("\n")
        shared = any(found.start() < len(first) < found.end() for found in _MARKER.finditer(line))
        self._fence, in_code = _fence_after(self._fence, first)
        if shared or not line_end:
            return [(line, in_code)]
        # It was no marker after all: the lines are what they are, each for itself.
        return [(first, in_code), *(whole for other in rest.split("\n") for whole in self.take(other))]


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
        self._lines = _Lines()
        self._line = ""  # the last line so far, raw
        self._given = self._scanned = 0  # characters of it that are shown, and that hold no marker
        self._begun = False  # a line is shown already, so the next one starts with a line end
        self._space = ""

    def feed(self, piece: str) -> str:
        """Add a piece of the raw text; returns what the reader sees more."""
        self._line += piece
        *ended, self._line = self._line.split("\n") if "\n" in piece else [self._line]
        parts = [self._closed(*whole) for line in ended for whole in self._lines.take(line)]
        text = self._space + "".join(parts) + self._open_line()
        seen = text.rstrip()
        self._space = text[len(seen) :]
        return seen

    def _closed(self, line: str, in_code: bool) -> str:
        shown = line if in_code else _strip(line)
        more = self._shown(shown[self._given :]) if shown.strip() or not line.strip() else ""
        self._given = self._scanned = 0
        return more

    def _open_line(self) -> str:
        if self._lines.held:
            return ""  # the line before it ends inside what may be a marker, and waits for this one
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
