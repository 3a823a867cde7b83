"""ADRs in a text: where they begin and end, their header, their sections.

An ADR is found by its header (front matter with ``adr_id``, anywhere outside code), or by its heading ``# ADR-``, in
the text itself or in a ```markdown fence. Rules (``---``) and code blocks are no headers (docs/enforcement.md).
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from worker.enforcement.frontmatter import HeaderError, Node, read_header
from worker.enforcement.outline import Heading, Outline
from worker.enforcement.scan import outline

#: More ADRs than this in one text are no answer of an agent; the text is rejected, not judged in part.
MAX_ADRS = 20

_ADR_ID = re.compile(r"[ {]{0,2}[\"']?adr_id[\"']?\s*:")
_KEY = re.compile(r"[ {?\"']{0,3}\w[\w .-]{0,60}[\"']?\s*:")
_TITLE = re.compile(r"ADR-\w")


@dataclass(frozen=True, slots=True)
class Section:
    """A level 2 section: its title, the line of its heading, and the line after its last (from 0)."""

    title: str
    line: int
    end: int


@dataclass(slots=True)
class Adr:
    """One ADR. Lines count from 0 in ``out``; ``first_line`` is where that text begins in the answer.

    Attributes:
        start, end: its lines. header: the lines between its ``---`` lines, None without a header.
        root: the header's YAML, None when it is empty, missing or broken. error: what broke it.
        offset: character in the answer at which the text begins; -1 when the text is indented there (no edits then).
    """

    out: Outline
    start: int
    end: int
    header: tuple[int, int] | None
    first_line: int = 0
    offset: int = 0
    root: Node | None = None
    error: HeaderError | None = None
    sections: list[Section] = field(default_factory=list)

    @property
    def yaml_text(self) -> str:
        """The text between the header's ``---`` lines."""
        begin, end = self.header or (0, 0)
        return "".join(f"{line}\n" for line in self.out.lines[begin:end])

    def char_of(self, line: int) -> int:
        """The character of the answer at which a line of this text begins."""
        return self.offset + sum(len(before) + 1 for before in self.out.lines[:line])

    def line_of(self, line: int) -> int:
        """The line of the answer, from 1, of a line of this text."""
        return self.first_line + line + 1

    def header_line(self, line: int) -> int:
        """The line of the answer, from 1, of a line of the header's YAML."""
        return self.line_of((self.header or (self.start, 0))[0] + line)


def header_end(lines: Sequence[str], number: int) -> int:
    """The line after the ADR header whose opening ``---`` is line ``number``; 0 when that is only a rule.

    A header names ``adr_id``, or stands right before a ``# ADR-`` heading and is YAML data rather than prose.
    """
    close = next((n for n in range(number + 1, len(lines)) if lines[n].rstrip() == "---" and lines[n][0] == "-"), 0)
    if not close:
        return 0
    body = lines[number + 1 : close]
    if any(_ADR_ID.match(line) for line in body):
        content = (line for line in body if line.strip() and not line.lstrip().startswith("#"))
        return close + 1 if _KEY.match(next(content, "")) else 0
    following = next((line for line in lines[close + 1 : close + 20] if line.strip()), "")
    return close + 1 if following.startswith("# ADR-") and _is_data("\n".join(body)) else 0


def _is_data(text: str) -> bool:
    try:
        root = read_header(text)
    except HeaderError:
        return False
    return root is None or root.kind != "scalar" or not any(char.isspace() for char in root.value)


def find_adrs(out: Outline, starts: Sequence[int]) -> list[Adr]:
    """The ADRs of a text, in its order: those in the text itself, and those in ```markdown fences outside of them.

    Args:
        out: the text's outline, made with ``header_end``.
        starts: where each line begins, in characters.
    """
    found = list(_plain_adrs(out))
    first = found[0].start if found else len(out.lines)  # an ADR goes to the next one or to the end of the text
    for fence in out.fences:
        if fence.is_document and fence.start < first:
            found += _fenced_adrs(out, fence.start + 1, fence.end - fence.closed, fence.indent, starts)
            if len(found) > MAX_ADRS:
                break
    return sorted(found, key=lambda adr: adr.first_line + adr.start)


def _plain_adrs(out: Outline) -> Iterator[Adr]:
    """The ADRs that stand in the text itself."""
    begins: list[tuple[int, tuple[int, int] | None]] = [(start, (start + 1, end - 1)) for start, end in out.headers]
    titles = [h.line for h in out.headings if h.level == 1 and h.top and _TITLE.match(h.title)]
    owned = {titles[at] for _, end in out.headers if (at := bisect_left(titles, end)) < len(titles)}
    begins += [(line, None) for line in titles if line not in owned]
    begins.sort(key=lambda begin: begin[0])
    if not begins:
        return
    ends = [start for start, _ in begins[1:]] + [len(out.lines)]
    begins, ends = begins[: MAX_ADRS + 1], ends[: MAX_ADRS + 1]
    tops = [h for h in out.headings if h.top and h.level <= 2]
    lines = [h.line for h in tops]
    for (start, header), end in zip(begins, ends, strict=True):
        adr = Adr(out, start, end, header)
        adr.sections = list(_sections(tops[bisect_left(lines, start) : bisect_left(lines, end)], end))
        if header:
            try:
                adr.root = read_header(adr.yaml_text)
            except HeaderError as error:
                adr.error = error
        yield adr


def _fenced_adrs(out: Outline, first: int, last: int, indent: int, starts: Sequence[int]) -> Iterator[Adr]:
    """The ADRs in a document's fence; its lines go from ``first`` up to, not including, ``last``."""
    lines = out.lines[first:last]
    if indent:
        lines = [line[min(indent, len(line) - len(line.lstrip(" "))) :] for line in lines]
    for adr in _plain_adrs(outline("\n".join(lines), header_end)):
        adr.first_line = first
        adr.offset = -1 if indent else starts[first]
        yield adr


def _sections(headings: Sequence[Heading], end: int) -> Iterator[Section]:
    """The level 2 sections: each ends at the next heading of level 1 or 2, or with the ADR."""
    for heading, following in zip(headings, [*[h.line for h in headings[1:]], end], strict=bool(headings)):
        if heading.level == 2:
            yield Section(heading.title, heading.line, following)
