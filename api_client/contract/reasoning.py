"""Separate a model's reasoning from its answer: ``<think>`` blocks at the start of a text, or never closed.

The filter removes:
- blocks at the start of the text, and the blank space after them;
- everything up to a closing tag without an opening one, if the tag begins or ends its line;
- a block that begins at the start of a line and is never closed, up to the end of the text.

Tags in code and quotes are text, and so is a closed block in the middle of an answer.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

from api_client.contract.growing_text import fence_after

_TAGS = "think|thinking|reasoning|thought|thoughts|reflection"
#: A tag that opens or closes reasoning, as in ``<think>``, ``<seed:think>``, ``<|think|>``, ``◁think▷`` or ``[THINK]``.
_OPENS, _ENDS = r"(?:<[|｜]?|◁|(?-i:\[(?=/?THINK\])))", r"(?:[|｜]?>|▷|\])"
_PREFIX = r"(?:[a-z]{1,9}:)?"
TAG = re.compile(rf"{_OPENS}(?P<slash>/?){_PREFIX}(?P<tag>{_TAGS})(?:\s[^<>\n]{{0,80}})?{_ENDS}", re.IGNORECASE)
_CLOSING = {
    tag: re.compile(rf"(?<!`){_OPENS}/{_PREFIX}{tag}\s{{0,9}}{_ENDS}(?!`)", re.IGNORECASE) for tag in _TAGS.split("|")
}
#: The end of a text that may become a tag.
_PARTIAL_TAG = re.compile(
    r"(?:(?:<[|｜]?|◁)/?(?:[a-z:]{5,20}\s[^<>\n]{0,80}|[a-z:]{0,20})[|｜]?|\[/?[THINK]{0,5})\Z", re.IGNORECASE
)
_BLANK = re.compile(r"[\s\ufeff]*")
_REST = re.compile(r"[^\S\n]{0,100}(?:\n|\Z)")
#: Longest closing tag, with a character before and after it.
_MOST_TAG = 36
#: Characters of a line that decide whether it opens a code fence.
_MOST_LINE = 200
_START, _INSIDE, _TEXT, _PENDING = range(4)


class RemovedPiece(NamedTuple):
    """A removed piece of reasoning: its start and end (exclusive), and whether its closing tag was missing."""

    start: int
    end: int
    closed: bool


@dataclass(frozen=True, slots=True)
class SeparatedText:
    """The text of an answer without the model's reasoning, and the removed pieces of the original text."""

    text: str
    removed: tuple[RemovedPiece, ...] = ()


def remove_reasoning(text: str) -> SeparatedText:
    """Return a complete text without the model's reasoning. Other text is left unchanged."""
    if not TAG.search(text):
        return SeparatedText(text)
    reasoning = ReasoningFilter()
    return SeparatedText(reasoning.close(text), tuple(reasoning.removed))


class ReasoningFilter:
    """Removes reasoning from a text that arrives in pieces of any size.

    Attributes:
        removed: the pieces of reasoning found so far.
        voids: how often a closing tag turned all earlier text into reasoning, so that the text begins anew.
    """

    def __init__(self) -> None:
        self.removed: list[RemovedPiece] = []
        self.voids = 0
        self._state = _START
        self._shown: list[str] = []
        self._held, self._at, self._place = "", 0, 0  # the last text, what of it is decided, and where it begins
        self._pieces: list[str] = []  # later text, of which the end was searched
        self._window = ""
        self._searched = 0  # place before which the held text has nothing to find
        self._from, self._tag = 0, ""  # the current block
        self._fence, self._line, self._ticks = "", "", 0  # the open code fence, the last line so far, its backticks
        self._opened = False  # the answer has mentioned an opening tag

    def feed(self, piece: str) -> str:
        """Add a piece of the text, and return the text that is certainly part of the answer.

        If ``voids`` grew, the returned text replaces everything returned before.
        """
        return self._run(piece, final=False)

    def close(self, piece: str = "") -> str:
        """Add the last piece of the text, and return the rest of the answer like ``feed``."""
        return self._run(piece, final=True)

    def _run(self, piece: str, *, final: bool) -> str:
        self._pieces.append(piece)
        self._window = self._window[-_MOST_TAG:] + piece
        if self._state == _PENDING and not final and not _CLOSING[self._tag].search(self._window):
            return ""  # a long block is searched once
        self._held, self._place, self._at = "".join([self._held[self._at :], *self._pieces]), self._place + self._at, 0
        self._pieces.clear()
        self._searched = max(self._searched - self._place, 0)
        steps = (self._at_start, self._inside, self._in_text, self._pending)
        while (self._at < len(self._held) or (final and self._state == _INSIDE)) and steps[self._state](final=final):
            pass
        self._searched += self._place
        shown, self._shown = "".join(self._shown), []
        return shown

    def _show(self, end: int) -> None:
        shown = self._held[self._at : end]
        self._shown.append(shown)
        self._at = end
        *ended, last = shown.split("\n")
        for line in ended:
            self._fence, _ = fence_after(self._fence, (self._line + line)[:_MOST_LINE])
            self._line, self._ticks = "", 0
        self._line += last[: _MOST_LINE - len(self._line)]
        self._ticks += last.count("`")

    def _remove(self, end: int, *, closed: bool = True) -> None:
        self._at, self._searched, self._state = end, end, _START
        self.removed.append(RemovedPiece(self._from, self._place + end, closed))

    def _begin_block(self, found: re.Match[str], state: int) -> None:
        self._from, self._tag, self._state = self._place + found.start(), found["tag"].lower(), state
        self._searched = found.end()

    def _at_start(self, *, final: bool) -> bool:
        found = _BLANK.match(self._held, max(self._searched, self._at))
        self._searched = found.end() if found else self._at
        if (opening := TAG.match(self._held, self._searched)) and not opening["slash"]:
            self._begin_block(opening, _INSIDE)
            self._from = self._place + self._at
            self._at = self._searched
            return True
        if not final and (self._searched == len(self._held) or _PARTIAL_TAG.fullmatch(self._held, self._searched)):
            return False
        if self.removed:
            self._at = self._searched
            self.removed[-1] = self.removed[-1]._replace(end=self._place + self._at)
        self._state, self._fence, self._line, self._ticks, self._opened = _TEXT, "", "", 0, False
        return True

    def _find_end(self, *, final: bool) -> int:
        closing = _CLOSING[self._tag].search(self._held, self._searched)
        if closing and (final or closing.end() < len(self._held)):
            return closing.end()
        self._searched = max(self._searched, len(self._held) - _MOST_TAG)
        return 0

    def _inside(self, *, final: bool) -> bool:
        if end := self._find_end(final=final):
            self._remove(end)
        elif final:
            self._remove(len(self._held), closed=False)
        else:
            self._at = max(self._at, self._searched - 1)
            return False
        return True

    def _pending(self, *, final: bool) -> bool:
        """Keep a block in the middle of the text once its end has arrived. Return True if it has."""
        if end := self._find_end(final=final):
            self._state = _TEXT
            self._show(end)
        elif final:
            self._remove(len(self._held), closed=False)
        return bool(end)

    def _in_text(self, *, final: bool) -> bool:
        found = TAG.search(self._held, self._at)
        if found is None:
            partial = None if final else _PARTIAL_TAG.search(self._held, self._at)
            self._show(partial.start() if partial else len(self._held))
            return False
        self._show(found.start())
        alone = not self._line.strip()
        if fence_after(self._fence, self._line)[1] or self._ticks % 2:
            self._show(found.end())
        elif not found["slash"]:
            self._opened = True
            if alone:
                self._begin_block(found, _PENDING)
            else:
                self._show(found.end())
        elif self._opened:
            self._show(found.end())
        else:
            return self._take_closing(found.end(), alone=alone, final=final)
        return True

    def _take_closing(self, end: int, *, alone: bool, final: bool) -> bool:
        if not alone:
            rest = _REST.match(self._held, end)
            if rest is None:
                self._show(end)
                return True
            if rest.end() == len(self._held) and not (rest[0].endswith("\n") or final):
                return False
        self.voids += 1
        self._shown.clear()
        self._from = self.removed[-1].end if self.removed else 0
        self._remove(end)
        return True
