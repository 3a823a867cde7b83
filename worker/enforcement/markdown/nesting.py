"""Where a document in a fence ends, when the document has its own fences."""

from __future__ import annotations

import re
from collections.abc import Iterator

FENCE = re.compile(r"(`{3,})([^`]*)$|(~{3,})(.*)$")


def document_end(lines: list[str], start: int, mark: str, *, alone: bool) -> int:
    """The line after the fence that closes a document's fence, fences inside the document counted.

    Agents wrap a whole document in three backticks although it has its own code blocks. By CommonMark the first
    inner fence ends it and turns the rest inside out; what the agent meant is that fences nest. When the fences up to
    the text's last one pair up, the last one is the document's; else a fence with words opens, and a bare one closes.

    Args:
        lines: the text.
        start: the line of the opening fence.
        mark: the characters of the opening fence.
        alone: the text has no document before; only then the whole text is looked at.

    Returns:
        0 when the content is not a document that starts with a header or an ADR's heading; -1 when no end is found.
    """
    first = next((line for line in lines[start + 1 : start + 20] if line.strip()), "")
    if first.rstrip() != "---" and not first.startswith("# ADR-"):
        return 0
    fences = _fences(lines, start + 1, mark)
    if alone:
        *inner, (last, words) = list(fences) or [(0, True)]
        inside = False
        for _, opens in inner:
            inside = not inside or opens  # in a code block, a fence with words is code
        if not inside and not words:
            return last + 1
        fences = iter([*inner, (last, words)])
    depth = 1
    for number, opens in fences:
        depth += 1 if opens else -1
        if depth == 0:
            return number + 1
    return -1


def _fences(lines: list[str], start: int, mark: str) -> Iterator[tuple[int, bool]]:
    """The lines from ``start`` on that are fences of at least these characters, and whether words follow them."""
    for number in range(start, len(lines)):
        line = lines[number].strip(" \r")
        if line.startswith(mark) and (found := FENCE.match(line)):
            yield number, bool((found[2] or found[4] or "").strip())
