"""The step marker is a note between the agent and us. It never shows in an answer (DESIGN section 6)."""

from __future__ import annotations

import re

#: Bounded, so that no text makes the search slow.
_MARKER = re.compile(r"<!--[ \t]{0,64}STEP[ \t]{0,64}:[^\n>]{0,200}-->", re.IGNORECASE)
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
