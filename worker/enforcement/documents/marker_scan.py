"""Which step markers of an answer count: those outside code, quotes and YAML headers."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from itertools import groupby

from api_client.contract.marker import Marker
from worker.enforcement.markdown.outline import Outline

_TICKS = re.compile(r"\\`|`+|<!--")


def surely_outside(text: str, found: Sequence[Marker]) -> bool:
    """True when no marker can be in code or a quote: no fence anywhere, and each marker begins a line.

    A comment at the beginning of a line interrupts every paragraph, list and quote (CommonMark, HTML block 2).
    """
    return "```" not in text and "~~~" not in text and all(not m.start or text[m.start - 1] == "\n" for m in found)


def outside_code(text: str, found: Sequence[Marker], out: Outline, starts: Sequence[int]) -> list[Marker]:
    """Those markers that stand outside code blocks, code spans, quotes and YAML headers.

    Args:
        text: the answer.
        found: the candidates, in the text's order.
        out: the answer's outline.
        starts: where each line begins, in characters.
    """
    hidden = _merged([(f.start, f.end) for f in out.fences] + out.indented + out.quotes + out.headers)
    lines = [bisect_right(starts, m.start) - 1 for m in found]
    visible = [(m, line) for m, line in zip(found, lines, strict=True) if not _within(line, hidden)]
    kept: list[Marker] = []
    for (first, last), group in groupby(visible, key=lambda pair: _inline_block(pair[1], out)):
        members = [m for m, _ in group]
        begin = starts[first]
        end = starts[last] if last < len(starts) else len(text)
        if first == last or text.find("`", begin, members[-1].start) < 0:
            kept += members
            continue
        spans = _code_spans(text[begin:end])
        kept += [m for m in members if not _within(m.start - begin, spans)]
    return kept


def _inline_block(line: int, out: Outline) -> tuple[int, int]:
    """The lines of the paragraph or heading a line is in; an empty range for an HTML block, which has no code spans."""
    at = bisect_right(out.paragraphs, (line, len(out.lines) + 1)) - 1
    if at >= 0 and out.paragraphs[at][0] <= line < out.paragraphs[at][1]:
        return out.paragraphs[at]
    return (line, line) if out.lines[line].lstrip(" >*+-0123456789.)").startswith("<!--") else (line, line + 1)


def _within(value: int, ranges: Sequence[tuple[int, int]]) -> bool:
    """True when a value is in one of the sorted, disjoint ranges."""
    at = bisect_right(ranges, value, key=lambda pair: pair[0]) - 1
    return at >= 0 and value < ranges[at][1]


def _merged(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The ranges, sorted and made disjoint (a fence may be in a quote)."""
    merged: list[tuple[int, int]] = []
    for start, end in sorted(ranges):
        if merged and start < merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def _code_spans(text: str) -> list[tuple[int, int]]:
    """The code spans of a paragraph. Comments hide backticks, and a backslash hides the first one, outside code."""
    runs: dict[int, list[int]] = {}
    tokens = [(found.group(), found.start(), found.end()) for found in _TICKS.finditer(text)]
    for piece, start, end in tokens:
        if piece[-1] == "`":
            ticks = start + 1 if piece[0] == "\\" else start
            runs.setdefault(end - ticks, []).append(ticks)
    spans: list[tuple[int, int]] = []
    past = 0
    no_comment_from = len(text) + 1
    for piece, start, end in tokens:
        if start < past or piece[0] == "\\":
            continue
        if piece == "<!--":
            close = text.find("-->", end) if start < no_comment_from else -1
            if close < 0:
                no_comment_from = min(no_comment_from, start)
            else:
                past = close + 3
            continue
        same = runs[end - start]
        at = bisect_right(same, start)
        if at < len(same):
            past = same[at] + end - start
            spans.append((start, past))
    return spans
