"""Hides step markers and part tags in an answer that is still being written.

Markers in code and quotes stay. Which other markers count depends on the end of the answer, so all of them are hidden.
"""

from __future__ import annotations

import re

from api_client.contract.step_marker import BEGINNING, PATTERN

#: Most line ends and most characters of a marker.
_MOST_LINE_ENDS, _MOST_CHARS = 8, 350
_FENCE = re.compile(r"[ \t>]{0,32}(?:[-*+][ \t]{1,4})?(`{3,}|~{3,})(.*)")
_QUOTE = re.compile(r" {0,3}>")
#: A tag around a part that a retry asks for (docs/enforcement.md, "Feedback").
_PART_TAG = r"<part id=\"[0-9a-f]{6}(?:-\d{1,2})?\">|</part>"
_HIDDEN = re.compile(f"{PATTERN.pattern}|{_PART_TAG}")
#: What is hidden, or text that may become it: a growing text is shown up to here.
_HIDDEN_BEGINNING = re.compile(rf"{BEGINNING.pattern}|{_PART_TAG}|</?(?:p(?:a(?:r(?:t[^>\n]{{0,24}})?)?)?)?\Z")


class _LineScanner:
    """Splits a growing text into lines, but does not split a step marker."""

    def __init__(self) -> None:
        self._fence = ""
        self.held = ""  # lines that may end inside a marker, with their line ends

    def add_line(self, line: str) -> list[tuple[str, bool]]:
        """Add a line. Return the lines that are now complete, each with a flag that says if it is code or a quote."""
        line = self.held + line
        if self._may_continue(line):
            self.held = f"{line}\n"
            return []
        self.held = ""
        return self._complete_lines(line)

    def _may_continue(self, line: str) -> bool:
        if line.count("\n") >= _MOST_LINE_ENDS or fence_after(self._fence, line)[1]:
            return False
        tail = f"{line[-_MOST_CHARS:]}\n"
        return any(found.end() == len(tail) for found in BEGINNING.finditer(tail))

    def _complete_lines(self, line: str) -> list[tuple[str, bool]]:
        first, line_end, rest = line.partition("\n")
        shared = any(found.start() < len(first) < found.end() for found in PATTERN.finditer(line))
        self._fence, in_code = fence_after(self._fence, first)
        if shared or not line_end:
            return [(line, in_code)]
        return [(first, in_code), *(whole for other in rest.split("\n") for whole in self.add_line(other))]


def fence_after(fence: str, line: str) -> tuple[str, bool]:
    """Return the code fence that is still open after ``line``, and whether the line is code or a quote."""
    match = _FENCE.match(line)
    if fence:
        closes = match and match[1].startswith(fence) and not match[2].strip()
        return ("" if closes else fence), True
    opens = match and not (match[1][0] == "`" and "`" in match[2])
    return (match[1], True) if match and opens else ("", _QUOTE.match(line) is not None)


def _strip_markers(line: str) -> str:
    parts: list[str] = []
    end = ticks = 0
    for match in _HIDDEN.finditer(line):
        ticks += line.count("`", end, match.start())
        parts.append(line[end : match.start() if ticks % 2 == 0 else match.end()])
        end = match.end()
    return "".join([*parts, line[end:]])


class VisibleText:
    """Removes step markers and part tags from an answer while it is still being written.

    The result does not depend on how the text is cut into pieces.
    """

    def __init__(self) -> None:
        self._lines = _LineScanner()
        self._line = ""  # the last line so far, raw
        self._given = self._scanned = 0  # shown characters of the line, and characters searched for markers
        self._begun = False  # a line was shown already, so the next one starts with a line end
        self._space = ""

    def feed(self, piece: str) -> str:
        """Add a piece of the raw answer, and return the text that can now be shown."""
        self._line += piece
        *ended, self._line = self._line.split("\n") if "\n" in piece else [self._line]
        parts = [self._show_closed_line(*whole) for line in ended for whole in self._lines.add_line(line)]
        text = self._space + "".join(parts) + self._show_open_line()
        seen = text.rstrip()
        self._space = text[len(seen) :]
        return seen

    def _show_closed_line(self, line: str, in_code: bool) -> str:
        shown = line if in_code else _strip_markers(line)
        more = self._add_shown(shown[self._given :]) if shown.strip() or not line.strip() else ""
        self._given = self._scanned = 0
        return more

    def _show_open_line(self) -> str:
        if self._lines.held:
            return ""  # the line before may end inside a marker and waits for this one
        found = _HIDDEN_BEGINNING.search(self._line, self._scanned)
        self._scanned = found.start() if found else len(self._line)
        more = self._line[self._given : self._scanned]
        if not (self._given or more.strip()):
            return ""  # a line of white space and markers disappears as a whole
        more = self._add_shown(more)
        self._given = self._scanned
        return more

    def _add_shown(self, more: str) -> str:
        line_end = "\n" if self._begun and not self._given else ""
        self._begun = True
        return line_end + more
