"""An answer and the files with it, each parsed at most once: validators and policy share what was found."""

from __future__ import annotations

import json
import re
import tomllib
import unicodedata
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import accumulate, groupby
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from api_client.contract.marker import Marker, candidates
from worker.enforcement.documents.frontmatter import HeaderError, Node, read_header
from worker.enforcement.documents.outline import (
    BOM,
    CodeFence,
    Heading,
    Outline,
    Span,
    lines_of,
    may_hold_fences,
    outline,
    undented,
    within,
)

# The visible content of a part of a Markdown text: no comments, headings, rules, and characters without a width.

_COMMENT = re.compile(r"<!--.*?-->")
#: A longer line means nothing but itself.
_MAX_PLACE = 500
#: A line that represents text somewhere else: "(unverändert)", "[rest as before]", "...", "TODO".
_PLACEHOLDER = re.compile(
    r"[\s(\[{<*_`~.\u2026>!-]{0,20}(?:"
    r"(?:(?:der |die |das |the )?(?:rest|inhalt|content|text|section|abschnitt|alles|all)\b.{0,60})?"
    r"\b(?:unverändert|unchanged|wie (?:oben|bisher|gehabt|zuvor|vorher)|as (?:above|before)|same as (?:above|before)"
    r"|siehe oben|see above|bleibt(?: so| gleich)?|omitted|ausgelassen|gekürzt|truncated)\b.{0,40}"
    r"|todo\b.{0,60}|tbd|tba|folgt|wird ergänzt|to be added|n/?a|xxx|platzhalter|placeholder"
    r")?[\s)\]}>*_`~.\u2026!-]{0,20}$",
    re.IGNORECASE,
)
#: A line that says that text was left out here: "(unverändert)", "[… rest as before …]", "<!-- unchanged -->".
_LEFT_OUT = re.compile(
    r"[ \t*_>-]{0,8}(?:[(\[{\u2026]|\.{3}|<!--|\*|_).{0,100}"
    r"\b(?:unverändert|unchanged|wie (?:oben|bisher|gehabt|zuvor|vorher)|as (?:above|before)|siehe oben|see above"
    r"|omitted|ausgelassen|gekürzt|truncated)\b.{0,60}(?:[)\]}\u2026*_]|\.{3}|-->)[ \t\r]{0,8}$",
    re.IGNORECASE,
)
_ANY_COMMENT = re.compile(r"<!--.*?(?:-->|\Z)", re.DOTALL)
_INVISIBLE = re.compile(r"[\u200b-\u200f\u2060\ufeff\u00ad]")


def content(out: Outline, start: int, end: int) -> Iterator[tuple[int, str]]:
    """The lines ``start`` up to, not including, ``end`` that show something: their numbers from 0, and what they show.

    Fenced code is content as it is.
    """
    first, last = (bisect_left(out.headings, line, key=lambda heading: heading.line) for line in (start, end))
    headings = {heading.line for heading in out.headings[first:last]}
    first, last = (bisect_left(out.fences, line, key=lambda fence: fence.start) for line in (start, end))
    fenced = lines_of((max(fence.start, start), min(fence.end, end)) for fence in out.fences[max(first - 1, 0) : last])
    hidden = _Comments(out.lines, end)
    for number in range(start, end):
        line = out.lines[number]
        if number in fenced:
            yield number, line
            continue
        if hidden.open or "<!--" in line:
            line = hidden.take(number, line)
        if number in headings or not line.strip("-*_= \t\r\xa0"):
            continue
        if line.isascii() or "".join(c for c in line if unicodedata.category(c) != "Cf").strip():
            yield number, line


class _Comments:
    """Takes comments out of lines, one line after the other."""

    def __init__(self, lines: list[str], end: int) -> None:
        self.open = False
        self._lines, self._end, self._last = lines, end, -1

    def take(self, number: int, line: str) -> str:
        """The line without what is in a comment."""
        if self.open:
            _, close, line = line.partition("-->")
            if not close:
                return ""
            self.open = False
        line = _COMMENT.sub("", line)
        before, opening, _ = line.partition("<!--")
        # One without an end goes to the end of the text when it starts its line (HTML block 2), else it is text.
        self.open = bool(opening) and (not before.strip() or number < self._last_close(number))
        return before if self.open else line

    def _last_close(self, number: int) -> int:
        if self._last < 0:
            self._last = next((n for n in reversed(range(number, self._end)) if "-->" in self._lines[n]), 0)
        return self._last


def has_content(text: str) -> bool:
    """True when a section's text is more than headings, rules, comments and what represents other text."""
    for line in _ANY_COMMENT.sub("", text).split("\n"):
        bare = _INVISIBLE.sub("", line).strip()
        if bare.startswith("#") and bare.lstrip("#")[:1] in ("", " ", "\t"):
            continue
        if bare and len(bare) <= _MAX_PLACE and _PLACEHOLDER.match(bare):
            continue
        if bare and any(char.isalnum() for char in bare):
            return True
    return False


def leaves_out(text: str) -> bool:
    """True when a line of a section's text says that the rest of it is as before."""
    return any(_LEFT_OUT.match(line) for line in text.split("\n") if len(line) <= _MAX_PLACE)


def is_json(text: str) -> bool:
    """True when a text is nothing but JSON."""
    bare = text.strip()
    bare = re.sub(r"\A`{3,}\w*\n|\n`{3,}\Z", "", bare) if bare.startswith("```") else bare
    try:
        return bare[:1] in ("{", "[") and isinstance(json.loads(bare), dict | list)
    except (ValueError, RecursionError):
        return False


# ADRs in a text: where they begin and end, their header, their sections.
#
# An ADR is found by its header (front matter with ``adr_id``, anywhere outside code), or by its heading ``# ADR-``
# with a number, in the text itself or in a ```markdown fence. Rules (``---``) and code blocks are not headers.

#: More ADRs than this in one text are not an answer; the text is rejected, not judged in part.
MAX_ADRS = 20

#: Enough to see which language an ADR is written in.
_NAME_CHARS = 60
_FIRST_LINES = 200

_ADR_ID = re.compile(r"[ {]{0,2}[\"']?adr_id[\"']?\s*:")
_KEY = re.compile(r"[ {?\"']{0,3}\w[\w .-]{0,60}[\"']?\s*:")
_TITLE = re.compile(r"ADR-\d[\w.]{0,20}(.*)")
#: A heading that says no more than this after the number is over a text about an ADR: ``# ADR-038: Summary``.
_ABOUT = frozenset({
    "zusammenfassung", "kurzfassung", "überblick", "übersicht", "stand", "summary", "overview", "review", "recap",
})  # fmt: skip
_HEADING = re.compile(r"#{1,6}[ \t]+\S")
#: A line that a YAML header may have: a key, an entry, a comment, something indented or in brackets.
_YAML_LINE = re.compile(r"[ \t]+\S|-[ \t]|#|[\[\]{}]|[\w\"'?.-][^:]{0,60}:(?:\s|$)")
#: What is where a text is to be filled in: ``<Titel>``, ``[Beschreibung]``, ``{{ name }}``, ``...``, ``NNN``.
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
    """A section: its title as written, the lines of its heading and after its last (from 0), its heading's level."""

    title: str
    line: int
    end: int
    level: int = 2


@dataclass(slots=True)
class Adr:
    """One ADR. Lines count from 0 in ``out``; ``first_line`` is where that text begins in the answer.

    Attributes:
        start, end: its lines. header: the lines between its ``---`` lines, None without a header.
        root: the header's YAML, None when it is empty, missing or broken. error: what broke it.
        offset: character in the answer at which the text begins; -1 when the text is indented there (no edits then).
        closed: False for a header without its second ``---``. fenced: the text is that of a ```markdown fence.
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
        """The header's lines with those that read ``---``; none at the ADR's start without a header."""
        if self.header is None:
            return self.start, self.start
        return self.header[0] - 1, self.header[1] + self.closed

    @property
    def yaml_text(self) -> str:
        """The text between the header's ``---`` lines."""
        begin, end = self.header or (0, 0)
        return "".join(f"{line}\n" for line in self.out.lines[begin:end])

    @property
    def titled(self) -> bool:
        """True when it has a heading of level 1."""
        return any(heading.level == 1 and self.start <= heading.line < self.end for heading in self.out.headings)

    @property
    def name(self) -> str:
        """Its number from the header, else its title; at most 60 characters, empty when it has neither."""
        node = self.root.get("adr_id") if self.root is not None and self.root.kind == "mapping" else None
        if node is not None and node.kind == "scalar" and node.value.strip():
            return f"ADR-{node.value.strip().removeprefix('ADR-')}"[:_NAME_CHARS]
        titles = (h.title for h in self.out.headings if h.level == 1 and self.start <= h.line < self.end)
        return next(titles, "").strip()[:_NAME_CHARS]

    @property
    def prose(self) -> str:
        """The first lines behind the header."""
        begin = self.header[1] + 1 if self.header else self.start
        return "\n".join(self.out.lines[begin : min(self.end, begin + _FIRST_LINES)])

    def char_of(self, line: int) -> int:
        """The character of the answer at which a line of this text begins, behind a byte order mark."""
        if line == 0:
            return self.offset + self.out.lines[0].startswith(BOM)
        return self.offset + sum(len(before) + 1 for before in self.out.lines[:line])

    def line_of(self, line: int) -> int:
        """The line of the answer, from 1, of a line of this text."""
        return self.first_line + line + 1

    def header_line(self, line: int) -> int:
        """The line of the answer, from 1, of a line of the header's YAML."""
        return self.line_of((self.header or (self.start, 0))[0] + line)


def header_end(lines: Sequence[str], number: int) -> int:
    """The line after the ADR header whose opening ``---`` is line ``number``; 0 when that is only a rule.

    A header names ``adr_id``, or is right before a ``# ADR-`` heading and is YAML data rather than prose. One that
    has no second ``---`` ends before the first line that is blank or no YAML.
    """
    close = next((n for n in range(number + 1, len(lines)) if lines[n].rstrip() == "---" and lines[n][0] == "-"), 0)
    body = lines[number + 1 : close or len(lines)]
    if not close or _runs_into_the_text(body):
        end = _open_end(body)
        return number + 1 + end if end else 0
    if any(_ADR_ID.match(line) for line in body):
        return close + 1 if _starts_with_key(body) else 0
    if any(_is_heading(line) for line in body):
        return 0
    following = next((line for line in lines[close + 1 : close + 20] if line.strip()), "")
    return close + 1 if following.startswith("# ") and is_title(following[2:]) and _is_data("\n".join(body)) else 0


def _starts_with_key(body: Sequence[str]) -> bool:
    content = (line for line in body if line.strip() and not line.lstrip().startswith("#"))
    return bool(_KEY.match(next(content, "")))


def _runs_into_the_text(body: Sequence[str]) -> bool:
    """True when the next ``---`` is a rule of the text: behind a blank line there is more than YAML before it."""
    blank = next((n for n, line in enumerate(body) if not line.strip()), len(body))
    rest = (line for line in body[blank:] if line.strip())
    return any(_HEADING.match(line) or not _YAML_LINE.match(line) for line in rest) and not _is_data("\n".join(body))


def _open_end(body: Sequence[str]) -> int:
    """Count the lines of a header that nobody closed; 0 when these are not one: it has adr_id and another key."""
    end = next((n for n, line in enumerate(body) if not _YAML_LINE.match(line) or _is_heading(line)), len(body))
    keys = sum(1 for line in body[:end] if _KEY.match(line) and line[0] not in " #")
    named = any(_ADR_ID.match(line) for line in body[:end])
    return end if named and keys > 1 and _starts_with_key(body[:end]) else 0


def _is_heading(line: str) -> bool:
    """True for a heading of the text below a header; any other line with ``#`` is a comment in it."""
    return bool(_HEADING.match(line)) and (line.startswith("##") or is_title(line.lstrip("# \t")))


def is_title(title: str) -> bool:
    """True for the heading of an ADR: it has a number, and does not only announce a text about that ADR."""
    found = _TITLE.match(title)
    return found is not None and found[1].strip(" \t:–—-.").casefold() not in _ABOUT


def _is_data(text: str) -> bool:
    try:
        root = read_header(text)
    except HeaderError:
        return False
    return root is None or root.kind != "scalar" or not any(char.isspace() for char in root.value)


def find_adrs(out: Outline, starts: Sequence[int]) -> list[Adr]:
    """The ADRs of a text, in its order: those in the text itself, and those in ```markdown fences outside of them.

    ``out`` was made with ``header_end``; ``starts`` says where each line begins, in characters.
    """
    found = list(_plain_adrs(out))
    first = found[0].start if found else len(out.lines)  # an ADR goes to the next one or to the end of the text
    for fence in out.fences:
        if fence.is_document and fence.start < first:
            found += _fenced_adrs(out, fence, starts)
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
        adr.sections = list(_sections(tops[bisect_left(lines, start) : bisect_left(lines, end)], end))
        if header:
            try:
                adr.root = read_header(adr.yaml_text)
                if not adr.closed:
                    raise HeaderError(NOT_CLOSED, header[1] - header[0] - 1)
            except HeaderError as error:
                adr.error = error
        yield adr


def _fenced_adrs(out: Outline, fence: CodeFence, starts: Sequence[int]) -> Iterator[Adr]:
    first, last = fence.start + 1, fence.end - fence.closed
    lines = undented(out.lines[first:last], fence.indent)
    for adr in _plain_adrs(outline("\n".join(lines), header_end)):
        adr.first_line, adr.fenced = first, True
        adr.offset = -1 if fence.indent else starts[first]
        yield adr


def _sections(headings: Sequence[Heading], end: int) -> Iterator[Section]:
    """The sections: headings of level 2, or of level 3 in an ADR that has none of level 2.

    Each ends at the next heading of its level or above, or with the ADR.
    """
    own = 2 if any(heading.level == 2 for heading in headings) else 3
    headings = [heading for heading in headings if heading.level <= own]
    for heading, following in zip(headings, [*[h.line for h in headings[1:]], end], strict=bool(headings)):
        if heading.level == own:
            yield Section(heading.title, heading.line, following, own)


def is_excerpt(adr: Adr) -> bool:
    """True for an ADR in a fence that decides nothing.

    That is one without a section and without content, as a header that is shown; or one whose content is all place
    holders. An ADR outside of fences, and one with a single line of real content, is never an excerpt.
    """
    if not adr.fenced:
        return False
    body = adr.header_lines[1] if adr.header else adr.start
    filled = False
    for _, line in content(adr.out, body, adr.end):
        if not _PLACE_LINE.match(line):
            return False
        filled = True
    return filled or not adr.sections or _has_place_holder(adr)


def _has_place_holder(adr: Adr) -> bool:
    titles = (h.title for h in adr.out.headings if adr.start <= h.line < adr.end and h.level == 1)
    return any(_PLACE_FIELD.match(line) for line in adr.yaml_text.split("\n")) or any(
        _PLACE_TITLE.match(t) for t in titles
    )


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


# The language of a text: the function words in its prose tell it.

#: The commonest function words of each language, none of them a word of two languages here. In running prose every
#: third to fifth word is such a word, so that a few lines tell languages apart.
FUNCTION_WORDS: Mapping[str, frozenset[str]] = {
    language: frozenset(words.split())
    for language, words in tomllib.loads(Path(__file__).with_name("function_words.toml").read_text("utf-8")).items()
}
#: The language of each of these words.
_LANGUAGES = {word: language for language, words in FUNCTION_WORDS.items() for word in words}
_WORD = re.compile(r"[^\W\d_]{1,30}")
#: Function words that must be found before anything is said: a title or a list of names shows no language.
_LEAST = 8


def language_of(text: str) -> str:
    """The language of a text's prose, such as ``de``; empty when too little of it shows."""
    return most(word_counts(text))


def most(counts: Mapping[str | None, int]) -> str:
    """The language with the most words; empty when too little of it shows."""
    best = max(FUNCTION_WORDS, key=counts.__getitem__)
    return best if counts[best] >= _LEAST else ""


def word_counts(text: str) -> Counter[str | None]:
    """Return how often words of each language are in a text's prose; of no language, under None."""
    out = parse(text).out
    prose = out.without(out.code, out.indented, out.headers)
    return Counter(map(_LANGUAGES.get, _WORD.findall(prose.lower())))
