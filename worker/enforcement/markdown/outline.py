"""The outline of a Markdown text: where its headings, code, quotes and paragraphs are (``scan`` finds them)."""

from __future__ import annotations

from dataclasses import dataclass, field

#: Fences with these words hold a document, not code.
DOCUMENT_INFO = frozenset({"markdown", "md"})
#: A byte order mark, with which editors begin a text: no character of its first line.
BOM = "\ufeff"


@dataclass(frozen=True, slots=True)
class Heading:
    """A heading: level 1 to 6, its title as written, its line (from 0), and whether it stands in no list or quote."""

    level: int
    title: str
    line: int
    top: bool


@dataclass(slots=True)
class Fence:
    """A fenced code block: the lines ``start`` (opening fence) up to, not including, ``end``."""

    info: str
    start: int
    end: int
    closed: bool
    indent: int
    top: bool

    @property
    def is_document(self) -> bool:
        """True when the fence holds a document and not code."""
        return self.info.partition(" ")[0].lower() in DOCUMENT_INFO


@dataclass(slots=True)
class Outline:
    """Where things are, by lines counted from 0. Ranges exclude their end."""

    lines: list[str]
    headings: list[Heading] = field(default_factory=list)
    fences: list[Fence] = field(default_factory=list)
    #: Ranges of indented code; fenced code is in ``fences``.
    indented: list[tuple[int, int]] = field(default_factory=list)
    quotes: list[tuple[int, int]] = field(default_factory=list)
    paragraphs: list[tuple[int, int]] = field(default_factory=list)
    #: Ranges from opening to closing ``---`` of blocks that the caller's ``header`` accepted.
    headers: list[tuple[int, int]] = field(default_factory=list)


def section_ends(out: Outline) -> list[int]:
    """For each heading the line where its section ends: that of the next heading of its level or above."""
    ends, open_ = [len(out.lines)] * len(out.headings), list[int]()
    for place, heading in enumerate(out.headings):
        while open_ and out.headings[open_[-1]].level >= heading.level:
            ends[open_.pop()] = heading.line
        open_.append(place)
    return ends
