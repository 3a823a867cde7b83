"""Texts parsed at most once, shared by validators and policy."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import groupby
from pathlib import PurePosixPath
from typing import Any, NamedTuple

from api_client.contract.step_marker import Marker, find_markers
from worker.enforcement.documents.adr import Adr, find_adrs, find_header_end, is_excerpt
from worker.enforcement.documents.outline import (
    Outline,
    Span,
    find_span,
    lines_in_spans,
    may_hold_fences,
    parse_outline,
)

_TICKS = re.compile(r"\\`|`+|<!--")


def are_surely_outside(text: str, found: Sequence[Marker]) -> bool:
    """Return True if the given step markers certainly stand outside code and quotes."""
    return not may_hold_fences(text) and all(not m.start or text[m.start - 1] == "\n" for m in found)


def markers_outside_code(text: str, found: Sequence[Marker], out: Outline) -> list[Marker]:
    """Return the step markers of a text that are not inside code, quotes or YAML headers."""
    hidden = lines_in_spans(out.fenced, out.indented, out.quotes, out.headers)
    lines = [bisect_right(out.starts, m.start) - 1 for m in found]
    visible = [(m, line) for m, line in zip(found, lines, strict=True) if line not in hidden]
    kept: list[Marker] = []
    for (first, last), group in groupby(visible, key=lambda pair: _inline_block(pair[1], out)):
        members = [m for m, _ in group]
        begin, end = out.starts[first], out.starts[last]
        if first == last or text.find("`", begin, members[-1].start) < 0:
            kept += members
            continue
        spans = _code_spans(text[begin:end])
        kept += [m for m in members if not find_span(m.start - begin, spans)]
    return kept


def _inline_block(line: int, out: Outline) -> Span:
    return find_span(line, out.paragraphs) or (line, line if find_span(line, out.html) else line + 1)


def _code_spans(text: str) -> list[Span]:
    runs: dict[int, list[int]] = {}
    tokens = [(found.group(), found.start(), found.end()) for found in _TICKS.finditer(text)]
    for piece, start, end in tokens:
        if piece[-1] == "`":
            ticks = start + 1 if piece[0] == "\\" else start
            runs.setdefault(end - ticks, []).append(ticks)
    spans: list[Span] = []
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


class Document:
    """A Markdown text whose parts, such as headings and ADRs, are parsed on first use."""

    def __init__(self, text: str) -> None:
        self.text = text

    @cached_property
    def out(self) -> Outline:
        return parse_outline(self.text, find_header_end)

    def position_of(self, line: int) -> int:
        """Return the character position at which a line begins, or the text's length for a line past the end."""
        return min(self.out.starts[min(line, len(self.out.lines))], len(self.text))

    @cached_property
    def markers(self) -> list[Marker]:
        """Return the step markers of the text in order, without markers in code or quotes."""
        found = find_markers(self.text)
        if not found or ("out" not in self.__dict__ and are_surely_outside(self.text, found)):
            return found
        return markers_outside_code(self.text, found, self.out)

    @cached_property
    def adrs(self) -> list[Adr]:
        """Return the architecture decision records (ADRs) in the text, without those in ``excerpts``."""
        return self._found[0]

    @cached_property
    def excerpts(self) -> list[Adr]:
        """Return the ADRs in code fences that have no real content, for example templates."""
        return self._found[1]

    @cached_property
    def _found(self) -> tuple[list[Adr], list[Adr]]:
        adrs: list[Adr] = []
        excerpts: list[Adr] = []
        if "adr_id" in self.text or "ADR-" in self.text:
            for adr in find_adrs(self.out):
                (excerpts if is_excerpt(adr) else adrs).append(adr)
        return adrs, excerpts


@lru_cache(maxsize=8)
def parse_document(text: str) -> Document:
    """Parse a text and return its document. Recent documents are cached."""
    return Document(text)


class SourceText(NamedTuple):
    """A text to validate, with its file name, which is empty for the answer itself.

    ``is_adr`` means that the text must contain an ADR.
    """

    document: Document
    file: str
    is_adr: bool


def iterate_texts(response: str, context: Mapping[str, Any]) -> Iterator[SourceText]:
    """Yield the texts to validate: the answer, and then each other Markdown file of ``context["files"]``.

    Files named ``ADR-*.md`` must hold an ADR; so must the answer if ``context["expect_adr"]`` is true.
    """
    yield SourceText(parse_document(response), "", bool(context.get("expect_adr")))
    files = context.get("files") or {}
    for name, content in files.items():
        path = PurePosixPath(name)
        if path.suffix.lower() == ".md" and content != response:
            yield SourceText(parse_document(content), name, path.name.upper().startswith("ADR-"))
