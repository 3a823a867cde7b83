"""Fences that agents wrap parts of an answer in: what is in them, and where they stand."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

#: Words behind a fence that may wrap parts of an answer.
INFOS = frozenset(("", "markdown", "md", "html", "xml", "yaml", "yml", "frontmatter", "text", "txt", "plain", "diff"))
_FENCE = re.compile(r"([ \t>]{0,12})(`{3,}|~{3,})[ \t]*([^`\s]*)([^`]*)$")


@dataclass(frozen=True, slots=True)
class Wrapper:
    """A fence: the word behind it, its lines from ``start`` up to, not including, ``end``, and the text in it."""

    info: str
    start: int
    end: int
    text: str

    @property
    def is_yaml(self) -> bool:
        """True for YAML, and for a fence that says nothing."""
        return self.info in ("yaml", "yml", "frontmatter", "")

    @property
    def is_document(self) -> bool:
        """True for Markdown."""
        return self.info in ("markdown", "md")


def fences_of(lines: Sequence[str], infos: Collection[str] = INFOS) -> Iterator[Wrapper]:
    """The outermost fences that may wrap parts; fences in them nest, as agents mean them and CommonMark does not."""
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
            inner = [_unquoted(line, opening[1]) for line in lines[number + 1 : end - closed]]
            inner = _added(inner) if info == "diff" else inner
            yield Wrapper(info, number, end, "\n".join(inner))
        number = end


def _nested_end(lines: Sequence[str], start: int, mark: str) -> int:
    """The line after a fence's last, where a fence with a word opens and a bare one closes; 0 for none."""
    depth = 1
    for number in range(start + 1, len(lines)):
        if (found := _FENCE.match(lines[number])) and found[2].startswith(mark):
            depth += 1 if found[3] else -1
            if not depth:
                return number + 1
    return 0


def _plain_end(lines: Sequence[str], start: int, mark: str) -> int:
    """The line after a fence's last: the first bare one, as in CommonMark."""
    for number in range(start + 1, len(lines)):
        if (found := _FENCE.match(lines[number])) and found[2].startswith(mark) and not found[3]:
            return number + 1
    return len(lines)


def _added(lines: Sequence[str]) -> list[str]:
    """What a diff leaves: its new and its unchanged lines."""
    kept = (line for line in lines if not line.startswith(("-", "@@", "+++", "\\")))
    return [line[1:] if line[:1] in ("+", " ") else line for line in kept]


def _unquoted(line: str, lead: str) -> str:
    """A line of a fence without the indentation or quote that its fence has."""
    width = 0
    while width < len(lead) and width < len(line) and line[width] in " \t>":
        width += 1
    return line[width:]
