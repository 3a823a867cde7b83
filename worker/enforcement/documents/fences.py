"""The closed fenced blocks of an answer, as parsers and programs read them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from worker.enforcement.markdown.outline import Fence, Outline

_ALSO = {"py": "python", "python3": "python", "yml": "yaml", "sh": "shell", "bash": "shell"}


class Block(NamedTuple):
    """A closed block of an answer.

    Attributes:
        language: its usual name in small letters. text: with a line end.
        line: that of its opening fence in the answer, from 1. number: among the closed blocks of its language, from 1.
    """

    language: str
    text: str
    line: int
    number: int


def may_hold_fences(text: str) -> bool:
    """Whether a text may hold a fenced block: nothing opens one without three marks in a row."""
    return "```" in text or "~~~" in text


def language_of_fence(fence: Fence) -> str:
    """The language that a fence names, in small letters and by its usual name; empty when it names none."""
    words = fence.info.split(maxsplit=1)
    word = words[0].lower() if words else ""
    return _ALSO.get(word, word)


def blocks(out: Outline) -> Iterator[Block]:
    """The closed blocks that name a language; ``py``, ``yml``, ``sh`` and ``bash`` name python, yaml and shell."""
    counted: Counter[str] = Counter()
    for fence in out.fences:
        language = language_of_fence(fence)
        if not language or not fence.closed:
            continue
        counted[language] += 1
        lines = out.lines[fence.start + 1 : fence.end - 1]
        shown = [line[min(fence.indent, len(line) - len(line.lstrip(" "))) :] for line in lines]
        yield Block(language, "\n".join(shown) + "\n", fence.start + 1, counted[language])
