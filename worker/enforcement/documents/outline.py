"""Outline of a Markdown text: ranges of lines from markdown-it-py's block tokens.

Unlike CommonMark, it leaves out an ADR's YAML header, and nests fences in a fence that holds an ADR.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

from markdown_it import MarkdownIt
from markdown_it.common.utils import mdTrim
from markdown_it.ruler import RuleOptionsType
from markdown_it.rules_block import StateBlock, blockquote, code, fence, hr, html_block, list_block
from markdown_it.token import Token

DOCUMENT_INFO = frozenset({"markdown", "md"})
#: A byte order mark at the start of a text.
BOM = "\ufeff"
#: Deeper containers are text; otherwise markdown-it would drop the rest of the answer.
MAX_NESTING = 20

#: Texts with more blocks (paragraphs, and Markdown tokens) are only searched for headings, fences and headers.
MAX_BLOCKS = 30_000

#: Lines from the first to the second (excluded), counted from 0.
Span = tuple[int, int]
#: Returns the line after the header that starts at a ``---`` line, or 0 if there is none.
HeaderEnd = Callable[[list[str], int], int]
_Rule = Callable[[StateBlock, int, int, bool], bool]

_FENCE = re.compile(r"(`{3,})([^`]*)$|(~{3,})(.*)$")
_HEADING = re.compile(r"(#{1,6})(?:[ \t]+(.*?))?(?:(?:^|(?<=[ \t]))#+)?[ \t]*$")
_ALSO = {"py": "python", "python3": "python", "yml": "yaml", "sh": "shell", "bash": "shell"}


@dataclass(frozen=True, slots=True)
class Heading:
    """A Markdown heading: its level, title and line number from 0. ``top`` is False inside a list or a quote."""

    level: int
    title: str
    line: int
    top: bool


@dataclass(frozen=True, slots=True)
class CodeFence:
    """A fenced code block: the lines from ``start`` (the opening fence) to ``end`` (excluded)."""

    info: str
    start: int
    end: int
    closed: bool
    indent: int
    top: bool

    @property
    def is_document(self) -> bool:
        """Return True if the fence encloses a Markdown document instead of code."""
        return self.info.partition(" ")[0].lower() in DOCUMENT_INFO

    @property
    def language(self) -> str:
        """Return the normalised name of the fence's language, or an empty string if the fence names none."""
        words = self.info.split(maxsplit=1)
        word = words[0].lower() if words else ""
        return _ALSO.get(word, word)


class CodeBlock(NamedTuple):
    """A closed code block that names its language, with its code."""

    language: str
    text: str
    line: int
    number: int


@dataclass
class Outline:
    """The positions of headings, fences, quotes and other blocks in a Markdown text."""

    lines: list[str]
    headings: list[Heading] = field(default_factory=list)
    fences: list[CodeFence] = field(default_factory=list)
    indented: list[Span] = field(default_factory=list)
    quotes: list[Span] = field(default_factory=list)
    paragraphs: list[Span] = field(default_factory=list)
    html: list[Span] = field(default_factory=list)
    #: Accepted headers, including their ``---`` lines.
    headers: list[Span] = field(default_factory=list)

    @property
    def code(self) -> list[Span]:
        """Return the line ranges of the fences that contain code."""
        return [(fence.start, fence.end) for fence in self.fences if not fence.is_document]

    @property
    def fenced(self) -> list[Span]:
        return [(fence.start, fence.end) for fence in self.fences]

    @cached_property
    def starts(self) -> list[int]:
        """Return the character position at which each line begins, and the position after the last line."""
        return [0, *accumulate(len(line) + 1 for line in self.lines)]

    def inner_text(self, fence: CodeFence) -> str:
        """Return the text inside a closed fence, without the indentation of the fence."""
        return "\n".join(remove_indent(self.lines[fence.start + 1 : fence.end - 1], fence.indent))

    def text_without(self, *hidden: Iterable[Span]) -> str:
        """Return the text without the lines of the given line ranges."""
        gone = lines_in_spans(*hidden)
        return "\n".join(line for number, line in enumerate(self.lines) if number not in gone)

    def section_ends(self) -> list[int]:
        """Return for each heading the number of the line where its section ends."""
        ends, open_ = [len(self.lines)] * len(self.headings), list[int]()
        for place, each in enumerate(self.headings):
            while open_ and self.headings[open_[-1]].level >= each.level:
                ends[open_.pop()] = each.line
            open_.append(place)
        return ends

    def find_code_blocks(self) -> Iterator[CodeBlock]:
        """Yield the closed code blocks that name their language."""
        counted: Counter[str] = Counter()
        for each in self.fences:
            if (language := each.language) and each.closed:
                counted[language] += 1
                yield CodeBlock(language, self.inner_text(each) + "\n", each.start + 1, counted[language])


def may_hold_fences(text: str) -> bool:
    """Return False if the text certainly has no fenced code block."""
    return "```" in text or "~~~" in text


def lines_in_spans(*spans: Iterable[Span]) -> set[int]:
    return {number for each in spans for start, end in each for number in range(start, end)}


def remove_indent(lines: Sequence[str], width: int) -> list[str]:
    return [line[min(width, len(line) - len(line.lstrip(" "))) :] for line in lines] if width else list(lines)


def find_span(line: int, spans: Sequence[Span]) -> Span | None:
    """Return the line range that contains a line, or None. The ranges must be sorted and disjoint."""
    at = bisect_right(spans, line, key=lambda span: span[0]) - 1
    return spans[at] if at >= 0 and line < spans[at][1] else None


def parse_outline(text: str, header: HeaderEnd | None = None) -> Outline:
    """Parse a Markdown text and return the positions of its blocks. ``header`` finds the end of YAML headers."""
    out = Outline(text.split("\n"))
    reading = _RuleState(out, header)
    tokens: list[Token] = []
    _MARKDOWN.block.parse("\n".join(reading.masked_lines), _MARKDOWN, {_OURS: reading}, tokens)
    for token in tokens:
        _record_token(out, token)
    return out


def _record_token(out: Outline, token: Token) -> None:
    if token.map is None:
        return
    start, end = token.map
    if token.type == "code_block":
        out.indented.append((start, end))
    elif token.type == "html_block":
        out.html.append((start, end))
    elif token.type == "blockquote_open" and not (out.quotes and start < out.quotes[-1][1]):
        out.quotes.append((start, end))
    elif token.type == _HEADER:
        out.headers.append((start, end))


_OURS = "reading"
_HEADER = "header"
_MASK = "\0header"


class _RuleState:
    """The state of this module's Markdown rules while a text is parsed."""

    def __init__(self, out: Outline, header: HeaderEnd | None) -> None:
        self.out, self.lines, self.documents = out, out.lines, header is not None
        self.balanced = True
        self.alone = True
        self.masked_lines = [line.rstrip("\r") for line in self.lines]
        self.masked_lines[0] = self.masked_lines[0].removeprefix(BOM)
        starts = [n for n, line in enumerate(self.masked_lines) if line[:3] == "---" and line.rstrip() == "---"]
        self.headers = {number: end for number in starts if header and (end := header(self.lines, number))}
        for number in self.headers:
            self.masked_lines[number] = _MASK

    def find_fence_end(self, start: int, mark: str) -> int:
        if not (self.documents and self.balanced):
            return 0
        end = find_document_end(self.lines, start, mark, alone=self.alone)
        self.alone = self.alone and end == 0
        self.balanced = end >= 0  # one vain search to the end of the text is enough
        return max(end, 0)


def _header_rule(state: StateBlock, start: int, _end: int, silent: bool) -> bool:
    end = state.env[_OURS].headers.get(start)
    if not end:
        return False
    if not silent:
        token = state.push(_HEADER, "", 0)
        token.map = [start, end]
        state.line = end
    return True


def _fence_rule(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    if not fence(state, start, end, silent):
        return False
    if silent:
        return True
    token, reading = state.tokens[-1], state.env[_OURS]
    last = state.line - 1
    mark = state.src[state.bMarks[last] + state.tShift[last] : state.eMarks[last]].rstrip()
    closed = last > start and mark.startswith(token.markup) and not mark.strip(token.markup[0])
    closed = closed and not state.is_code_block(last)
    document = not token.level and token.info.strip().partition(" ")[0].lower() in DOCUMENT_INFO
    if document and (nested := reading.find_fence_end(start, token.markup)):
        state.line, closed = nested, True
    end = state.line if closed or state.line < len(state.bMarks) - 1 else len(reading.lines)
    place = state.bMarks[start] + state.tShift[start]
    before = state.src[state.src.rfind("\n", 0, place) + 1 : place]
    state.tokens.pop()
    reading.out.fences.append(
        CodeFence(token.info.strip(), start, end, closed, len(before.expandtabs(4)), top=not token.level)
    )
    return True


def _heading_rule(state: StateBlock, start: int, _end: int, silent: bool) -> bool:
    place = state.bMarks[start] + state.tShift[start]
    found = _HEADING.match(state.src[place : state.eMarks[start]])
    if found and not silent:
        state.env[_OURS].out.headings.append(Heading(len(found[1]), (found[2] or "").strip(), start, not state.level))
        state.line = start + 1
    return found is not None


def _text_rule(state: StateBlock, start: int, end: int) -> None:
    """Parse a paragraph or an underlined heading, which ends before a blank line or another block."""
    before, state.parentType = state.parentType, "paragraph"
    endings, level, line = state.md.block.ruler.getRules("paragraph"), 0, start + 1
    while not level and line < end and not state.isEmpty(line):
        indent = state.sCount[line] - state.blkIndent
        if 0 <= indent <= 3:
            mark = state.src[state.bMarks[line] + state.tShift[line] : state.eMarks[line]].rstrip(" \t")
            level = _UNDERLINES.get(mark[0], 0) if not mark.strip(mark[0]) else 0
        if (
            not level
            and indent <= 3
            and state.sCount[line] >= 0
            and any(rule(state, line, end, True) for rule in endings)
        ):
            break
        line += 1
    out, last = state.env[_OURS].out, line - bool(level)
    out.paragraphs.append((start, last))
    if level:
        title = mdTrim(state.getLines(start, last, state.blkIndent, False))
        out.headings.append(Heading(level, title, start, not state.level))
        state.parentType = before
    state.line = line


def _is_full(state: StateBlock) -> bool:
    return len(state.tokens) + len(state.env[_OURS].out.paragraphs) > MAX_BLOCKS


def _full_rule(state: StateBlock, _start: int, _end: int, silent: bool) -> bool:
    return silent and _is_full(state)


def _quote_rule(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    return state.level < MAX_NESTING and blockquote(state, start, end, silent)


def _list_rule(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    return state.level < 2 * MAX_NESTING and list_block(state, start, end, silent)


_BEGINS: dict[str, tuple[_Rule, ...]] = {
    _MASK[0]: (_header_rule,),
    **dict.fromkeys("`~", (_fence_rule,)),
    ">": (_quote_rule,),
    **dict.fromkeys("*-", (hr, _list_rule)),
    "_": (hr,),
    **dict.fromkeys("+0123456789", (_list_rule,)),
    "<": (html_block,),
    "#": (_heading_rule,),
}
_UNDERLINES = {"=": 1, "-": 2}
_ALWAYS = {begin: rules for begin, rules in _BEGINS.items() if begin in _MASK[0] + "`~#"}
_ALWAYS_BLOCK = re.compile(r"^ {0,3}[\0`~#]", re.MULTILINE)


def _first_rule(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    """Parse a block quickly, by trying only the rules that suit the first character of the line."""
    if state.is_code_block(start):
        return not silent and code(state, start, end, silent)
    place = state.bMarks[start] + state.tShift[start]
    full = _is_full(state)
    for rule in (_ALWAYS if full else _BEGINS).get(state.src[place : place + 1], ()):
        if rule(state, start, end, silent):
            return True
    if full and not state.level and not silent:
        found = _ALWAYS_BLOCK.search(state.src, state.eMarks[start])
        state.line = bisect_left(state.bMarks, found.start(), start + 1) if found else end
    elif not silent:
        _text_rule(state, start, end)
    return not silent


def _build_parser() -> MarkdownIt:
    made = MarkdownIt("commonmark", {"maxNesting": 10 * MAX_NESTING})
    ruler = made.block.ruler
    ruler.before("code", "first", _first_rule, {"alt": ["paragraph", "blockquote"]})
    ends_lists: RuleOptionsType = {"alt": ["list"]}
    ruler.at("fence", _fence_rule, ends_lists)
    ruler.at("blockquote", _quote_rule, ends_lists)
    ruler.at("hr", hr, ends_lists)
    ruler.before("code", _HEADER, _header_rule, ends_lists)
    ruler.before("code", "full", _full_rule, ends_lists)
    for name, rule in (("list", _list_rule), ("html_block", html_block), ("heading", _heading_rule)):
        ruler.at(name, rule, {"alt": []})
    return made


_MARKDOWN = _build_parser()


def find_document_end(lines: list[str], start: int, mark: str, *, alone: bool) -> int:
    """Return the line after the closing fence of a fenced document, even if the document contains other fences.

    If all fences pair up, the last one closes the document; else a fence with words opens and a bare one closes. Return
    0 if the content is not a document, and -1 if no end is found.
    """
    first = next((line for line in lines[start + 1 : start + 20] if line.strip()), "")
    if first.rstrip() != "---" and not first.startswith("# ADR-"):
        return 0
    fences = _find_fences(lines, start + 1, mark)
    if alone:
        *inner, (last, words) = list(fences) or [(0, True)]
        inside = False
        for _, opens in inner:
            inside = not inside or opens  # inside a code block, a fence with words is code
        if not inside and not words:
            return last + 1
        fences = iter([*inner, (last, words)])
    depth = 1
    for number, opens in fences:
        depth += 1 if opens else -1
        if depth == 0:
            return number + 1
    return -1


def _find_fences(lines: list[str], start: int, mark: str) -> Iterator[tuple[int, bool]]:
    for number in range(start, len(lines)):
        line = lines[number].strip(" \r")
        if line.startswith(mark) and (found := _FENCE.match(line)):
            yield number, bool((found[2] or found[4] or "").strip())
