"""Outline of a Markdown text: ranges of lines from markdown-it-py's block tokens.

Unlike CommonMark, it leaves out an ADR's YAML header, and nests fences in a fence that holds an ADR.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from markdown_it import MarkdownIt
from markdown_it.ruler import RuleOptionsType
from markdown_it.rules_block import (
    StateBlock,
    blockquote,
    code,
    fence,
    heading,
    hr,
    html_block,
    lheading,
    list_block,
    paragraph,
)
from markdown_it.token import Token

DOCUMENT_INFO = frozenset({"markdown", "md"})
#: A byte order mark at the start of a text.
BOM = "\ufeff"
#: Deeper containers are text; otherwise markdown-it would drop the rest of the answer.
MAX_NESTING = 20

#: A text with more blocks than any document has (Markdown tokens, three a paragraph): behind them only headings, fences
#: and headers are blocks, so that time stays short. Lists and quotes are paragraphs there.
MAX_TOKENS = 100_000

#: Lines from the first to the second (excluded), counted from 0.
Span = tuple[int, int]
#: Returns the line after the header that starts at a ``---`` line, or 0 if there is none.
HeaderEnd = Callable[[list[str], int], int]
_Rule = Callable[[StateBlock, int, int, bool], bool]

_FENCE = re.compile(r"(`{3,})([^`]*)$|(~{3,})(.*)$")
_ALSO = {"py": "python", "python3": "python", "yml": "yaml", "sh": "shell", "bash": "shell"}


@dataclass(frozen=True, slots=True)
class Heading:
    """A Markdown heading with its level, its title and its line, counted from 0.

    ``top`` means that the heading is in no list or quote.
    """

    level: int
    title: str
    line: int
    top: bool


@dataclass(frozen=True, slots=True)
class CodeFence:
    """A fenced code block in a text, given as a range of lines.

    The lines go from ``start`` (the opening fence) to ``end`` (excluded).
    """

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
        """Return the usual name of the fence's language in lower case, or an empty string if the fence names none."""
        words = self.info.split(maxsplit=1)
        word = words[0].lower() if words else ""
        return _ALSO.get(word, word)


class CodeBlock(NamedTuple):
    """A closed code block that names its language, with the code to be checked.

    ``line`` is the line of the opening fence, and ``number`` counts the blocks of the language, both from 1.
    """

    language: str
    text: str
    line: int
    number: int


@dataclass(slots=True)
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
        """Return the line ranges of all fences."""
        return [(fence.start, fence.end) for fence in self.fences]

    def inner_text(self, fence: CodeFence) -> str:
        """Return the text inside a closed fence, without the indentation of the fence."""
        return "\n".join(remove_indent(self.lines[fence.start + 1 : fence.end - 1], fence.indent))

    def text_without(self, *hidden: Iterable[Span]) -> str:
        """Return the text without the lines of the given line ranges."""
        gone = lines_in_spans(*hidden)
        return "\n".join(line for number, line in enumerate(self.lines) if number not in gone)

    def section_ends(self) -> list[int]:
        """Return for each heading the number of the line at which its section ends."""
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
    """Return the numbers of all lines in the given line ranges."""
    return {number for each in spans for start, end in each for number in range(start, end)}


def remove_indent(lines: Sequence[str], width: int) -> list[str]:
    """Return the lines with up to ``width`` spaces of indentation removed from each."""
    return [line[min(width, len(line) - len(line.lstrip(" "))) :] for line in lines] if width else list(lines)


def find_span(line: int, spans: Sequence[Span]) -> Span | None:
    """Return the line range that contains a line, or None. The ranges must be sorted and disjoint."""
    at = bisect_right(spans, line, key=lambda span: span[0]) - 1
    return spans[at] if at >= 0 and line < spans[at][1] else None


def parse_outline(text: str, header: HeaderEnd | None = None) -> Outline:
    """Parse a Markdown text and return the positions of its blocks.

    ``header`` finds the end of YAML headers, which then count as separate blocks.
    """
    out = Outline(text.split("\n"))
    reading = _RuleState(out.lines, header)
    tokens: list[Token] = []
    _MARKDOWN.block.parse("\n".join(reading.masked_lines()), _MARKDOWN, {_OURS: reading}, tokens)
    for token, following in zip(tokens, [*tokens[1:], None], strict=False):
        _record_token(out, token, following)
    return out


def _record_token(out: Outline, token: Token, following: Token | None) -> None:
    if token.map is None:
        return
    start, end = token.map
    if token.type == "paragraph_open":
        out.paragraphs.append((start, end))
    elif token.type == "heading_open":
        out.headings.append(
            Heading(int(token.tag[1]), following.content if following else "", start, top=not token.level)
        )
        if token.markup in ("=", "-"):
            out.paragraphs.append((start, end - 1))
    elif token.type == "fence":
        out.fences.append(CodeFence(token.info.strip(), start, end, top=not token.level, **token.meta))
    elif token.type == "code_block":
        out.indented.append((start, end))
    elif token.type == "html_block":
        out.html.append((start, end))
    elif token.type == "blockquote_open" and not (out.quotes and start < out.quotes[-1][1]):
        out.quotes.append((start, end))
    elif token.type == _HEADER:
        out.headers.append((start, end))


_OURS = "reading"
_HEADER = "header"
#: Replaces the first line of a header, which markdown-it would take for an underlined heading.
_MASK = "\0header"


class _RuleState:
    """Keeps what the Markdown rules of this module know about the text that is being parsed."""

    def __init__(self, lines: list[str], header: HeaderEnd | None) -> None:
        self.lines, self.documents = lines, header is not None
        starts = (n for n, line in enumerate(self._plain_lines()) if line[:3] == "---" and line.rstrip() == "---")
        self.headers = {number: end for number in starts if header and (end := header(lines, number))}
        self.balanced = True
        self.alone = True

    def masked_lines(self) -> Iterator[str]:
        return (_MASK if number in self.headers else line for number, line in enumerate(self._plain_lines()))

    def _plain_lines(self) -> Iterator[str]:
        yield self.lines[0].removeprefix(BOM).rstrip("\r")
        yield from (line.rstrip("\r") for line in self.lines[1:])

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
        token.map = [start, nested]
    if not closed and state.line == len(state.bMarks) - 1:  # markdown-it ignores an empty last line
        token.map = [start, len(reading.lines)]
    place = state.bMarks[start] + state.tShift[start]
    before = state.src[state.src.rfind("\n", 0, place) + 1 : place]
    token.meta = {"closed": closed, "indent": len(before.expandtabs(4))}
    return True


def _is_full(state: StateBlock) -> bool:
    return len(state.tokens) > MAX_TOKENS


def _full_rule(state: StateBlock, _start: int, _end: int, silent: bool) -> bool:
    return silent and _is_full(state)


def _quote_rule(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    return state.level < MAX_NESTING and blockquote(state, start, end, silent)


def _list_rule(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    return state.level < 2 * MAX_NESTING and list_block(state, start, end, silent)


#: Rules by the first character of a line. Any other line is a paragraph.
_BEGINS: dict[str, tuple[_Rule, ...]] = {
    _MASK[0]: (_header_rule,),
    **dict.fromkeys("`~", (_fence_rule,)),
    ">": (_quote_rule,),
    **dict.fromkeys("*-", (hr, _list_rule)),
    "_": (hr,),
    **dict.fromkeys("+0123456789", (_list_rule,)),
    "<": (html_block,),
    "#": (heading,),
}
_ALWAYS = {begin: rules for begin, rules in _BEGINS.items() if begin in _MASK[0] + "`~#"}


def _first_rule(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    """Parse a block by trying only the rules that fit the first character of the line, to save time."""
    if state.is_code_block(start):
        return not silent and code(state, start, end, silent)
    place = state.bMarks[start] + state.tShift[start]
    full = _is_full(state)
    for rule in (_ALWAYS if full else _BEGINS).get(state.src[place : place + 1], ()):
        if rule(state, start, end, silent):
            return True
    return not silent and ((not full and lheading(state, start, end, False)) or paragraph(state, start, end, False))


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
    for name, rule in (("list", _list_rule), ("html_block", html_block), ("heading", heading)):
        ruler.at(name, rule, {"alt": []})
    return made


_MARKDOWN = _build_parser()


def find_document_end(lines: list[str], start: int, mark: str, *, alone: bool) -> int:
    """Return the line after the fence that closes a fenced document, even if the document contains other fences.

    Agents wrap whole documents in three backticks although these have code blocks; CommonMark would end the document at
    the first inner fence. If all fences pair up, the last one closes the document; else a fence with words opens and a
    bare one closes. Return 0 if the content is not a document, and -1 if no end is found.
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
