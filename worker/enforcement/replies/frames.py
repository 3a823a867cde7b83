"""Removal of the frames that agents put around parts: quote marks, tags, HTML headings, JSON values."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from worker.enforcement.documents.step import strip_marker
from worker.enforcement.documents.titles import section_key
from worker.enforcement.replies.vocabulary import is_introduction, is_remark

#: Marks the line where a part ends with its frame.
CUT = "\x00"
_TAGS = frozenset(
    ("section", "adr", "answer", "response", "part", "document", "output", "markdown", "details", "result", "reply")
)
_OPEN = re.compile(
    r"<([^\W\d_][\w-]{0,40})((?:\s{1,3}[\w-]{1,20}=(?:\"[^\"<>]{0,100}\"|'[^'<>]{0,100}'))*)\s?>", re.IGNORECASE
)
_VALUE = re.compile(r"=[\"']([^\"']*)[\"']")
_HTML_HEADING = re.compile(r"<h([1-6])\b[^<>]{0,100}>\s{0,4}(.{1,200}?)\s{0,4}</h\1>[ \t]*$", re.IGNORECASE)
_ATX = re.compile(r"#{1,6}[ \t]+(\S.*)")
_CONTENT = ("content", "text", "body", "markdown", "section", "answer", "inhalt")
_NAMED = ("title", "heading", "section", "name", "titel")
INFOS = frozenset(("", "markdown", "md", "html", "xml", "yaml", "yml", "frontmatter", "text", "txt", "plain", "diff"))
_FENCE = re.compile(r"([ \t>]{0,12})(`{3,}|~{3,})[ \t]*([^`\s]*)([^`]*)$")
_DEEP = 3


@dataclass(frozen=True, slots=True)
class Wrapper:
    """A code fence in a reply that may wrap a part of an answer, with the text inside."""

    info: str
    start: int
    end: int
    text: str

    @property
    def is_document(self) -> bool:
        """Return True if the fence contains Markdown."""
        return self.info in ("markdown", "md")


def remove_frames(text: str, titles: Collection[str]) -> str:
    """Return a reply as Markdown, without the quote marks, tags and other wrappers around its parts.

    A tag is content unless it is named like a requested title, or a requested heading is inside.
    """
    wanted = {section_key(title) for title in titles}
    lines = text.split("\n")
    if all(not line.strip() or line.startswith(">") for line in lines):
        lines = [line[1:].removeprefix(" ") for line in lines]
        text = "\n".join(lines)
    if wanted and (value := find_json_value(text)) is not None:
        return "\n\n".join(_find_texts(value, wanted, _DEEP))
    if "<" not in text:
        return text
    coded = {number for fence in find_wrappers(lines) for number in range(fence.start, fence.end)}
    for number, line in enumerate(lines):
        if number not in coded and (found := _HTML_HEADING.match(line)) and section_key(found[2]) in wanted:
            lines[number] = f"{'#' * int(found[1])} {found[2]}"
    return "\n".join(_remove_tags(lines, coded, wanted))


def find_json_value(text: str) -> dict[str, Any] | list[Any] | None:
    """Return the JSON object or list that a reply consists of, or None if the reply is not JSON."""
    bare = text.strip()
    if "```" in bare and not bare.startswith(("{", "[")):
        lines = bare.split("\n")
        fences = list(find_wrappers(lines, ("json", "")))
        if len(fences) == 1 and not has_text_around(lines, fences[0].start, fences[0].end):
            bare = fences[0].text.strip()
    if bare[:1] not in ("{", "["):
        return None
    try:
        value = json.loads(bare)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict | list) else None


def unwrap_value(reply: str) -> str:
    """Return the text inside the only fence of a reply, or the whole reply if it has other content."""
    body = strip_marker(reply)
    lines = body.replace("\r\n", "\n").strip().split("\n")
    fences = list(find_wrappers(lines, (*INFOS, "json")))
    if len(fences) != 1 or has_text_around(lines, fences[0].start, fences[0].end):
        return reply
    return fences[0].text + reply[len(body) :]


def has_text_around(lines: Sequence[str], start: int, end: int) -> bool:
    """Return True if there is text outside a range of lines, other than remarks and an introduction."""
    paragraphs = "\n".join([*lines[:start], "", *lines[end:]]).split("\n\n")
    return any(part.strip() and not (is_remark(part) or is_introduction(part)) for part in paragraphs)


def _find_texts(value: Any, wanted: Collection[str], depth: int) -> Iterator[str]:
    if isinstance(value, list) and depth:
        for one in value:
            yield from _find_texts(one, wanted, depth - 1)
    if not isinstance(value, dict):
        return
    named = next(
        (value[name] for name in _NAMED if isinstance(value.get(name), str) and section_key(value[name]) in wanted), ""
    )
    for name, text in value.items():
        if isinstance(text, str) and section_key(name) in wanted:
            yield text if _ATX.match(text) else f"## {name}\n\n{text}"
        elif isinstance(text, str) and name.lower() in _CONTENT and text != named:
            yield f"## {named}\n\n{text}" if named and not _ATX.match(text) else text
        elif depth:
            yield from _find_texts(text, wanted, depth - 1)


def _remove_tags(lines: list[str], coded: Collection[int], wanted: Collection[str]) -> list[str]:
    """Return the lines without the tags around the first requested part, and mark where that part ends."""
    headings = [
        n for n, line in enumerate(lines) if n not in coded and (h := _ATX.match(line)) and section_key(h[1]) in wanted
    ]
    number = 0
    while number < len(lines):
        found = _OPEN.match(lines[number]) if number not in coded else None
        if found is None:
            if number in headings:
                break  # from here on, tags belong to a section
            number += 1
            continue
        names = [found[1], *_VALUE.findall(found[2])]
        title = next(
            (name for name in names if section_key(name) in wanted or section_key(name.replace("_", " ")) in wanted), ""
        )
        close = f"</{found[1]}>".lower()
        end = next((n for n in reversed(range(number, len(lines))) if lines[n].rstrip().lower().endswith(close)), -1)
        inside = [n for n in headings if number < n < end]
        alone = found[1].lower() in _TAGS and not lines[number][found.end() :].strip() and end > number
        if end < 0 or not (title or (alone and (inside or not has_text_around(lines, number, end + 1)))):
            number += 1
            continue
        lines[end] = lines[end].rstrip()[: -len(close)]
        lines[number] = lines[number][found.end() :]
        before = [f"## {title.replace('_', ' ')}", ""] if title and not inside else [""]
        lines[number : end + 1] = [*before, *lines[number : end + 1], CUT]
        return lines
    return lines


def find_wrappers(lines: Sequence[str], infos: Collection[str] = INFOS) -> Iterator[Wrapper]:
    """Yield the outermost code fences that may wrap a part of an answer. Fences may contain other fences."""
    number, nesting = 0, True
    while number < len(lines):
        opening = _FENCE.match(lines[number])
        if not opening:
            number += 1
            continue
        end = _nested_end(lines, number, opening[2]) if nesting else 0
        nesting = nesting and end > 0  # one vain search to the end of the text is enough
        end = end or _plain_end(lines, number, opening[2])
        info = opening[3].lower()
        if info in infos:
            closed = end > number + 1 and bool(_FENCE.match(lines[end - 1]))
            inner = [_unquote_line(line, opening[1]) for line in lines[number + 1 : end - closed]]
            if info == "diff":
                kept = (line for line in inner if not line.startswith(("-", "@@", "+++", "\\")))
                inner = [line[1:] if line[:1] in ("+", " ") else line for line in kept]
            yield Wrapper(info, number, end, "\n".join(inner))
        number = end


def _nested_end(lines: Sequence[str], start: int, mark: str) -> int:
    """Return the line after the end of a fence that may contain other fences, or 0 if the fence is never closed."""
    depth = 1
    for number in range(start + 1, len(lines)):
        if (found := _FENCE.match(lines[number])) and found[2].startswith(mark):
            depth += 1 if found[3] else -1
            if not depth:
                return number + 1
    return 0


def _plain_end(lines: Sequence[str], start: int, mark: str) -> int:
    """Return the line after the end of a code fence, as CommonMark defines it."""
    for number in range(start + 1, len(lines)):
        if (found := _FENCE.match(lines[number])) and found[2].startswith(mark) and not found[3]:
            return number + 1
    return len(lines)


def _unquote_line(line: str, lead: str) -> str:
    width = 0
    while width < len(lead) and width < len(line) and line[width] in " \t>":
        width += 1
    return line[width:]
