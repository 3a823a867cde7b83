"""ADRs in a text, found by front matter with ``adr_id`` or a heading ``# ADR-`` with a number: header and sections."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from worker.enforcement.documents.content import visible_lines
from worker.enforcement.documents.frontmatter import HeaderError, Node, parse_header
from worker.enforcement.documents.outline import BOM, CodeFence, Heading, Outline, parse_outline, remove_indent

MAX_ADRS = 20

_NAME_CHARS = 60
_FIRST_LINES = 200

_ADR_ID = re.compile(r"[ {]{0,2}[\"']?adr_id[\"']?\s*:")
_KEY = re.compile(r"[ {?\"']{0,3}\w[\w .-]{0,60}[\"']?\s*:")
_TITLE = re.compile(r"ADR-\d[\w.]{0,20}(.*)")
#: After these words the heading belongs to a text about an ADR: ``# ADR-038: Summary``.
_ABOUT = frozenset({
    "zusammenfassung", "kurzfassung", "überblick", "übersicht", "stand", "summary", "overview", "review", "recap",
})  # fmt: skip
_HEADING = re.compile(r"#{1,6}[ \t]+\S")
_YAML_LINE = re.compile(r"[ \t]+\S|-[ \t]|#|[\[\]{}]|[\w\"'?.-][^:]{0,60}:(?:\s|$)")
#: A field of a template: ``<Titel>``, ``[Beschreibung]``, ``{{ name }}``, ``...``, ``NNN``.
_PLACE = (
    r"(?:<[^<>]{1,120}>|\[[^\[\]]{1,120}\]|\([^()]{1,120}\)|\{\{?[^{}]{1,120}\}?\}"
    r"|\*[^*]{1,120}\*|_[^_]{1,120}_|\.{3}|…|[Xx]{2,8}|[Nn]{3,8}|TODO|TBD|\?{1,8})"
)
_PLACE_LINE = re.compile(rf"[ \t]*(?:(?:[-*+]|\d{{1,9}}[.)])[ \t]+)?(?:\[[ xX]\][ \t]+)?{_PLACE}[.:]?[ \t\r]*$")
_PLACE_FIELD = re.compile(rf"[ \t]*[\w-]{{1,40}}[ \t]*:[ \t]+[\"']?(?:ADR-)?{_PLACE}[\"']?[ \t\r]*(?:#.*)?$")
_PLACE_TITLE = re.compile(rf"ADR-\d+[ \t]*[:–—-][ \t]*{_PLACE}$")
NOT_CLOSED = "no --- line after it"


@dataclass(frozen=True, slots=True)
class Section:
    """A section of an architecture decision record (ADR), given as a range of lines from 0; ``end`` is excluded."""

    title: str
    line: int
    end: int
    level: int = 2


@dataclass(slots=True)
class Adr:
    """An architecture decision record (ADR) found in an answer, with its header and sections.

    Attributes:
        out, first_line: the outline that contains the ADR, and the line of the answer where the outline begins.
        start, end: lines in ``out``, from 0, ``end`` excluded.
        header: the lines between the ``---`` lines; None without a header.
        root: the header's YAML; None if empty, missing or broken.
        offset: position of the text in the answer; -1 if the text is indented and cannot be edited.
        closed: False if the header has no second ``---``.
        fenced: the text is the inside of a ```markdown fence.
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
    closed: bool = True
    fenced: bool = False

    @property
    def header_lines(self) -> tuple[int, int]:
        if self.header is None:
            return self.start, self.start
        return self.header[0] - 1, self.header[1] + self.closed

    @property
    def yaml_text(self) -> str:
        """Return the YAML text between the header's ``---`` lines."""
        begin, end = self.header or (0, 0)
        return "".join(f"{line}\n" for line in self.out.lines[begin:end])

    @property
    def has_title(self) -> bool:
        """Return True if the ADR has a heading of level 1."""
        return any(heading.level == 1 and self.start <= heading.line < self.end for heading in self.out.headings)

    @property
    def name(self) -> str:
        """Return the ADR's number, or its title (at most 60 characters) if the header has no number."""
        node = self.root.find_value("adr_id") if self.root is not None and self.root.kind == "mapping" else None
        if node is not None and node.kind == "scalar" and node.value.strip():
            return f"ADR-{node.value.strip().removeprefix('ADR-')}"[:_NAME_CHARS]
        titles = (h.title for h in self.out.headings if h.level == 1 and self.start <= h.line < self.end)
        return next(titles, "").strip()[:_NAME_CHARS]

    @property
    def prose(self) -> str:
        """Return the first 200 lines of the ADR's text after the header."""
        begin = self.header[1] + 1 if self.header else self.start
        return "\n".join(self.out.lines[begin : min(self.end, begin + _FIRST_LINES)])

    def char_of(self, line: int) -> int:
        """Return the character position in the answer at which a line of this ADR begins."""
        if line == 0:
            return self.offset + self.out.lines[0].startswith(BOM)
        return self.offset + self.out.starts[line]

    def line_of(self, line: int) -> int:
        """Convert a line number of this ADR to a line number of the whole answer, counted from 1."""
        return self.first_line + line + 1

    def header_line(self, line: int) -> int:
        """Convert a line number within the YAML header to a line number of the whole answer, counted from 1."""
        return self.line_of((self.header or (self.start, 0))[0] + line)


def find_header_end(lines: Sequence[str], number: int) -> int:
    """Return the number of the line after the header that starts at line ``number``, or 0 if there is no header."""
    close = next((n for n in range(number + 1, len(lines)) if lines[n].rstrip() == "---" and lines[n][0] == "-"), 0)
    body = lines[number + 1 : close or len(lines)]
    named = any(map(_ADR_ID.match, body))
    following = next((line for line in lines[close + 1 : close + 20] if line.strip()), "") if close else ""
    if not named and not (following.startswith("# ") and is_title(following[2:])):
        return 0
    if not close or _runs_into_the_text(body):
        end = next((n for n, line in enumerate(body) if not _YAML_LINE.match(line) or _is_heading(line)), len(body))
        keys = sum(1 for line in body[:end] if _KEY.match(line) and line[0] not in " #")
        named = any(_ADR_ID.match(line) for line in body[:end])
        return number + 1 + end if end and named and keys > 1 and _starts_with_key(body[:end]) else 0
    if named:
        return close + 1 if _starts_with_key(body) else 0
    return close + 1 if not any(map(_is_heading, body)) and _is_data("\n".join(body)) else 0


def _starts_with_key(body: Sequence[str]) -> bool:
    content = (line for line in body if line.strip() and not line.lstrip().startswith("#"))
    return bool(_KEY.match(next(content, "")))


def _runs_into_the_text(body: Sequence[str]) -> bool:
    blank = next((n for n, line in enumerate(body) if not line.strip()), len(body))
    rest = (line for line in body[blank:] if line.strip())
    return any(_HEADING.match(line) or not _YAML_LINE.match(line) for line in rest) and not _is_data("\n".join(body))


def _is_heading(line: str) -> bool:
    return bool(_HEADING.match(line)) and (line.startswith("##") or is_title(line.lstrip("# \t")))


def is_title(title: str) -> bool:
    """Return True if a heading is the title of an ADR, rather than of a summary or review of an ADR."""
    found = _TITLE.match(title)
    return found is not None and found[1].strip(" \t:–—-.").casefold() not in _ABOUT


def _is_data(text: str) -> bool:
    try:
        root = parse_header(text)
    except HeaderError:
        return False
    return root is None or root.kind != "scalar" or not any(char.isspace() for char in root.value)


def find_adrs(out: Outline) -> list[Adr]:
    """Return the ADRs of a parsed text in order, including ADRs in Markdown code fences."""
    found = list(_plain_adrs(out))
    first = found[0].start if found else len(out.lines)  # an ADR extends to the next ADR or to the end
    for fence in out.fences:
        if fence.is_document and fence.start < first:
            found += _fenced_adrs(out, fence)
            if len(found) > MAX_ADRS:
                break
    return sorted(found, key=lambda adr: adr.first_line + adr.start)


def _plain_adrs(out: Outline) -> Iterator[Adr]:
    closed = {start: end > start + 1 and out.lines[end - 1].rstrip() == "---" for start, end in out.headers}
    begins: list[tuple[int, tuple[int, int] | None]] = [
        (start, (start + 1, end - closed[start])) for start, end in out.headers
    ]
    titles = [h.line for h in out.headings if h.level == 1 and h.top and is_title(h.title)]
    owned = {titles[at] for _, end in out.headers if (at := bisect_left(titles, end)) < len(titles)}
    begins += [(line, None) for line in titles if line not in owned]
    begins.sort(key=lambda begin: begin[0])
    if not begins:
        return
    ends = [start for start, _ in begins[1:]] + [len(out.lines)]
    begins, ends = begins[: MAX_ADRS + 1], ends[: MAX_ADRS + 1]
    tops = [h for h in out.headings if h.top and h.level <= 3]
    lines = [h.line for h in tops]
    for (start, header), end in zip(begins, ends, strict=True):
        adr = Adr(out, start, end, header, closed=closed.get(start, True))
        adr.sections = list(_find_sections(tops[bisect_left(lines, start) : bisect_left(lines, end)], end))
        if header:
            try:
                adr.root = parse_header(adr.yaml_text)
                if not adr.closed:
                    raise HeaderError(NOT_CLOSED, header[1] - header[0] - 1)
            except HeaderError as error:
                adr.error = error
        yield adr


def _fenced_adrs(out: Outline, fence: CodeFence) -> Iterator[Adr]:
    first, last = fence.start + 1, fence.end - fence.closed
    lines = remove_indent(out.lines[first:last], fence.indent)
    for adr in _plain_adrs(parse_outline("\n".join(lines), find_header_end)):
        adr.first_line, adr.fenced = first, True
        adr.offset = -1 if fence.indent else out.starts[first]
        yield adr


def _find_sections(headings: Sequence[Heading], end: int) -> Iterator[Section]:
    own = 2 if any(heading.level == 2 for heading in headings) else 3
    headings = [heading for heading in headings if heading.level <= own]
    for heading, following in zip(headings, [*[h.line for h in headings[1:]], end], strict=bool(headings)):
        if heading.level == own:
            yield Section(heading.title, heading.line, following, own)


def is_excerpt(adr: Adr) -> bool:
    """Return True if an ADR in a code fence has no real content, for example because it is a template."""
    if not adr.fenced:
        return False
    body = adr.header_lines[1] if adr.header else adr.start
    filled = False
    for _, line in visible_lines(adr.out, body, adr.end):
        if not _PLACE_LINE.match(line):
            return False
        filled = True
    titles = (h.title for h in adr.out.headings if adr.start <= h.line < adr.end and h.level == 1)
    placed = any(map(_PLACE_FIELD.match, adr.yaml_text.split("\n"))) or any(map(_PLACE_TITLE.match, titles))
    return filled or not adr.sections or placed
