"""The closed fenced blocks of an answer, as parsers and programs read them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from worker.enforcement.markdown.outline import Outline

_ALSO = {"py": "python", "python3": "python", "yml": "yaml", "sh": "shell", "bash": "shell"}


class Block(NamedTuple):
    """A block: its language in small letters, its text with a line end, the line of its fence in the answer, from 1."""

    language: str
    text: str
    line: int


def blocks(out: Outline) -> Iterator[Block]:
    """The closed blocks that name a language; ``py``, ``yml``, ``sh`` and ``bash`` name python, yaml and shell."""
    for fence in out.fences:
        words = fence.info.split(maxsplit=1)
        if not words or not fence.closed:
            continue
        lines = out.lines[fence.start + 1 : fence.end - 1]
        shown = [line[min(fence.indent, len(line) - len(line.lstrip(" "))) :] for line in lines]
        word = words[0].lower()
        yield Block(_ALSO.get(word, word), "\n".join(shown) + "\n", fence.start + 1)
