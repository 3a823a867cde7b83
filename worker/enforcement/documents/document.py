"""An answer and the files with it, each parsed at most once: validators and policy share what was found."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import accumulate, groupby
from pathlib import PurePosixPath
from typing import Any, NamedTuple

from api_client.contract.marker import Marker, candidates
from worker.enforcement.documents.adr import Adr, find_adrs, header_end, is_excerpt
from worker.enforcement.documents.outline import Outline, Span, lines_of, may_hold_fences, outline, within

_TICKS = re.compile(r"\\`|`+|<!--")


def surely_outside(text: str, found: Sequence[Marker]) -> bool:
    """True when no marker can be in code or a quote: no fence anywhere, and each marker begins a line.

    A comment at the beginning of a line interrupts every paragraph, list and quote (CommonMark, HTML block 2).
    """
    return not may_hold_fences(text) and all(not m.start or text[m.start - 1] == "\n" for m in found)


def outside_code(text: str, found: Sequence[Marker], out: Outline, starts: Sequence[int]) -> list[Marker]:
    """Those of the candidates, in their order, that stand outside code blocks, code spans, quotes and YAML headers.

    ``starts`` says where each line of the text begins, in characters.
    """
    hidden = lines_of(out.fenced, out.indented, out.quotes, out.headers)
    lines = [bisect_right(starts, m.start) - 1 for m in found]
    visible = [(m, line) for m, line in zip(found, lines, strict=True) if line not in hidden]
    kept: list[Marker] = []
    for (first, last), group in groupby(visible, key=lambda pair: _inline_block(pair[1], out)):
        members = [m for m, _ in group]
        begin = starts[first]
        end = starts[last] if last < len(starts) else len(text)
        if first == last or text.find("`", begin, members[-1].start) < 0:
            kept += members
            continue
        spans = _code_spans(text[begin:end])
        kept += [m for m in members if not within(m.start - begin, spans)]
    return kept


def _inline_block(line: int, out: Outline) -> Span:
    """The lines of the paragraph or heading a line is in; an empty range for an HTML block, which has no code spans."""
    return within(line, out.paragraphs) or (line, line if within(line, out.html) else line + 1)


def _code_spans(text: str) -> list[Span]:
    """The code spans of a paragraph. Comments hide backticks, and a backslash hides the first one, outside code."""
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
    """A text and its parts, each found when it is first asked for."""

    def __init__(self, text: str) -> None:
        self.text = text

    @cached_property
    def out(self) -> Outline:
        """The Markdown outline; ADR headers are not Markdown in it."""
        return outline(self.text, header_end)

    @cached_property
    def starts(self) -> list[int]:
        """Return where each line begins, in characters."""
        return [0, *accumulate(len(line) + 1 for line in self.out.lines[:-1])]

    def at(self, line: int) -> int:
        """Return where a line begins, in characters; the text's end behind its last line."""
        return self.starts[line] if line < len(self.starts) else len(self.text)

    @cached_property
    def markers(self) -> list[Marker]:
        """The step markers outside code and quotes, in the text's order."""
        found = candidates(self.text)
        if not found or ("out" not in self.__dict__ and surely_outside(self.text, found)):
            return found
        return outside_code(self.text, found, self.out, self.starts)

    @cached_property
    def adrs(self) -> list[Adr]:
        """The ADRs of the text; those that are only shown in a fence are ``excerpts``."""
        return self._found[0]

    @cached_property
    def excerpts(self) -> list[Adr]:
        """ADRs in a ```markdown fence that decide nothing: a header alone, a template."""
        return self._found[1]

    @cached_property
    def _found(self) -> tuple[list[Adr], list[Adr]]:
        adrs: list[Adr] = []
        excerpts: list[Adr] = []
        if "adr_id" in self.text or "ADR-" in self.text:
            for adr in find_adrs(self.out, self.starts):
                (excerpts if is_excerpt(adr) else adrs).append(adr)
        return adrs, excerpts


@lru_cache(maxsize=8)
def parse(text: str) -> Document:
    """The document of a text; the last few are kept, because several validators look at the same answer."""
    return Document(text)


class Text(NamedTuple):
    """A text and the file it comes from (empty for the answer), and whether it must be an ADR."""

    content: str
    file: str
    is_adr: bool

    @property
    def adrs(self) -> list[Adr]:
        """The ADRs in it, parsed once for all validators."""
        return parse(self.content).adrs

    @property
    def excerpts(self) -> list[Adr]:
        """ADRs that are only shown in it."""
        return parse(self.content).excerpts


def texts_of(response: str, context: Mapping[str, Any]) -> Iterator[Text]:
    """The answer, then the Markdown files of ``context["files"]`` that are not the answer itself.

    Files named ``ADR-*.md`` must hold an ADR; so must the answer when ``context["expect_adr"]`` is true.
    """
    yield Text(response, "", bool(context.get("expect_adr")))
    files = context.get("files") or {}
    for name, content in files.items():
        path = PurePosixPath(name)
        if path.suffix.lower() == ".md" and content != response:
            yield Text(content, name, path.name.upper().startswith("ADR-"))
