"""Visible content of Markdown text: without comments, headings, rules and invisible characters."""

from __future__ import annotations

import json
import math
import re
import unicodedata
from bisect import bisect_left
from collections.abc import Iterator

from worker.enforcement.documents.outline import Outline, lines_in_spans
from worker.enforcement.documents.placeholders import is_placeholder

_COMMENT = re.compile(r"<!--.*?-->")
_ANY_COMMENT = re.compile(r"<!--.*?(?:-->|\Z)", re.DOTALL)
#: A line of anchors (``<a id="why"></a>``): it belongs to the heading below it.
ANCHOR = re.compile(r"(?:<a\s+(?:id|name)=[^<>]{1,200}>(?:\s*</a>)?\s*)+", re.IGNORECASE)
_INVISIBLE = re.compile(r"[\u200b-\u200f\u2060\ufeff\u00ad]")


def visible_lines(out: Outline, start: int, end: int) -> Iterator[tuple[int, str]]:
    """Yield number (from 0) and text of each line that a reader of the rendered Markdown would see."""
    first, last = (bisect_left(out.headings, line, key=lambda heading: heading.line) for line in (start, end))
    headings = {heading.line for heading in out.headings[first:last]}
    first, last = (bisect_left(out.fences, line, key=lambda fence: fence.start) for line in (start, end))
    fenced = lines_in_spans(
        (max(fence.start, start), min(fence.end, end)) for fence in out.fences[max(first - 1, 0) : last]
    )
    hidden = _CommentStripper(out.lines, end)
    for number in range(start, end):
        line = out.lines[number]
        if number in fenced:
            yield number, line
            continue
        if hidden.open or "<!--" in line:
            line = hidden.strip_comments(number, line)
        if number in headings or not line.strip("-*_= \t\r\xa0") or ("<" in line and ANCHOR.fullmatch(line.strip())):
            continue
        if line.isascii() or "".join(c for c in line if unicodedata.category(c) != "Cf").strip():
            yield number, line


def is_filled(out: Outline, start: int, end: int, *, state: bool = False) -> bool:
    """Return True if a range of lines contains any text besides placeholders.

    ``state`` means that a state such as "Pending" is content.
    """
    return any(not is_placeholder(line, state=state) for _, line in visible_lines(out, start, end))


class _CommentStripper:
    def __init__(self, lines: list[str], end: int) -> None:
        self.open = False
        self._lines, self._end, self._last = lines, end, -1

    def strip_comments(self, number: int, line: str) -> str:
        if self.open:
            _, close, line = line.partition("-->")
            if not close:
                return ""
            self.open = False
        line = _COMMENT.sub("", line)
        before, opening, _ = line.partition("<!--")
        # An unclosed comment at the start of a line hides the rest of the text (HTML block 2).
        self.open = bool(opening) and (not before.strip() or number < self._last_close(number))
        return before if self.open else line

    def _last_close(self, number: int) -> int:
        if self._last < 0:
            self._last = next((n for n in reversed(range(number, self._end)) if "-->" in self._lines[n]), 0)
        return self._last


def has_content(text: str, *, max_placeholders: float = math.inf) -> bool:
    """Return True if a text contains more than headings, anchors, rules, comments and placeholders.

    A text that begins with more than ``max_placeholders`` lines of placeholders has no content.
    """
    placeholders = 0
    for line in _ANY_COMMENT.sub("", text).split("\n"):
        bare = _INVISIBLE.sub("", line).strip()
        if (bare.startswith("#") and bare.lstrip("#")[:1] in ("", " ", "\t")) or ANCHOR.fullmatch(bare):
            continue
        if is_placeholder(bare):
            placeholders += bool(bare)
            if placeholders > max_placeholders:
                return False
            continue
        if bare and any(char.isalnum() for char in bare):
            return True
    return False


def is_json(text: str) -> bool:
    """Return True if the whole text is a JSON object or array, possibly in a code fence."""
    bare = text.strip()
    bare = re.sub(r"\A`{3,}\w*\n|\n`{3,}\Z", "", bare) if bare.startswith("```") else bare
    try:
        return bare[:1] in ("{", "[") and isinstance(json.loads(bare), dict | list)
    except (ValueError, RecursionError):
        return False
