"""Separate a model's reasoning from its answer: ``<think>`` blocks at the start of a text, or never closed.

The filter removes:
- blocks at the start of the text, and the blank space after them;
- everything up to a closing tag without an opening one, if the tag begins or ends its line;
- a block that begins at the start of a line and is never closed, up to the end of the text;
- at the start of the text, blocks of models that mark their reasoning in another form (``_FORMS``).

Tags in code and quotes are text, and so is a closed block in the middle of an answer.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

from api_client.contract.growing_text import fence_after

_TAGS = "think|thinking|reasoning|thought|thoughts|reflection|scratchpad|scratch_pad|antthinking"
#: A tag that opens or closes reasoning, as in ``<think>``, ``<seed:think>``, ``<|think|>``, ``◁think▷`` or ``[THINK]``.
_OPENS, _ENDS = r"(?:<[|｜]?|◁|(?-i:\[(?=/?THINK\])))", r"(?:[|｜]?>|▷|\])"
_PREFIX = r"(?:[a-z]{1,9}:)?"
TAG = re.compile(rf"{_OPENS}(?P<slash>/?){_PREFIX}(?P<tag>{_TAGS})(?:\s[^<>\n]{{0,80}})?{_ENDS}", re.IGNORECASE)
_CLOSING = {
    tag: re.compile(rf"(?<!`){_OPENS}/{_PREFIX}{tag}\s{{0,9}}{_ENDS}(?!`)", re.IGNORECASE) for tag in _TAGS.split("|")
}
#: The end of a text that may become a tag.
_PARTIAL_TAG = re.compile(
    r"(?:(?:<[|｜]?|◁)/?(?:[a-z_:]{5,20}\s[^<>\n]{0,80}|[a-z_:]{0,20})[|｜]?|\[/?[THINK]{0,5})\Z", re.IGNORECASE
)


class _Form(NamedTuple):
    """Notation of reasoning at the start of a text: its opening, possible beginnings of openings, and its closing.

    An author may write the words of an uncertain form too: it is removed only if it is closed and text follows.
    """

    opening: str
    beginnings: tuple[str, ...]
    closing: re.Pattern[str]
    certain: bool = True


#: The rest of a header of OpenAI's Harmony format, as in ``<|channel|>commentary to=functions.x <|constrain|>json``.
_HEADER = r"[^<\n]{0,80}(?:<\|constrain\|>[^<\n]{0,20})?<\|message\|>"
_ASSISTANT = r"(?:<\|start\|>assistant)?"
_CHANNEL = ("<|start|>assistant<|channel|>", "<|channel|>")
_FORMS = {
    "harmony": _Form(
        rf"{_ASSISTANT}<\|channel\|>(?:analysis|commentary){_HEADER}",
        tuple(f"{start}{name}" for start in _CHANNEL for name in ("analysis", "commentary")),
        re.compile(rf"<\|(?:end|call)\|>|(?={_ASSISTANT}<\|channel\|>)"),
    ),
    "harmony_answer": _Form(
        rf"{_ASSISTANT}<\|channel\|>final{_HEADER}", tuple(f"{start}final" for start in _CHANNEL), re.compile("")
    ),
    "gemma": _Form(r"<\|channel>thought", ("<|channel>thought",), re.compile(r"<channel\|>")),
    "granite": _Form(
        r"Here(?: is|['’]s) my thought process:",
        tuple(f"Here{verb} my thought process:" for verb in (" is", "'s", "’s")),
        re.compile(r"(?<=\n)Here(?: is|['’]s) my response:"),
        certain=False,
    ),
    "analysis": _Form("<analysis>", ("<analysis>",), re.compile("(?<!`)</analysis>(?!`)"), certain=False),
}
_CLOSING |= {name: form.closing for name, form in _FORMS.items()}
_OPENING = re.compile("|".join(f"(?P<{name}>{form.opening})" for name, form in _FORMS.items()))
#: Harmony's mark behind an answer.
_STOP = re.compile(r"<\|(?:return|end)\|>\s{0,100}\Z")
_SIGN = re.compile(rf"{TAG.pattern}|{_OPENING.pattern}", re.IGNORECASE)
#: What every sign begins with or ends with. Its search is 20 times as fast.
_MAY_BE_SIGN = re.compile(r"<[|｜/a-zA-Z]|◁|\[/?THINK\]|thought process:")
#: Most characters of a header behind its beginning.
_MOST_HEADER = 130
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


def may_hold_reasoning(text: str) -> bool:
    """Return False if a text certainly contains no reasoning."""
    return bool(_MAY_BE_SIGN.search(text) and _SIGN.search(text))


def remove_reasoning(text: str) -> SeparatedText:
    """Return a complete text without the model's reasoning. Other text is left unchanged."""
    if not may_hold_reasoning(text):
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
        self._harmony = False  # the text is in the format of Harmony

    def feed(self, piece: str) -> str:
        """Add a piece of the text, and return the text that is certainly part of the answer.

        If ``voids`` grew, the returned text replaces everything returned before.
        """
        return self._run(piece, final=False)

    def close(self, piece: str = "") -> str:
        """Add the last piece of the text, and return the part of the answer that was not returned before.

        If ``voids`` grew, the returned text replaces everything returned before.
        """
        return self._run(piece, final=True)

    def _run(self, piece: str, *, final: bool) -> str:
        self._pieces.append(piece)
        self._window = self._window[-_MOST_TAG:] + piece
        waits = self._state == _PENDING or (self._state == _INSIDE and not self._certain)
        if waits and not final and not _CLOSING[self._tag].search(self._window):
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

    def _begin_block(self, found: re.Match[str], tag: str, state: int) -> None:
        self._from, self._tag, self._state = self._place + found.start(), tag.lower(), state
        self._searched = found.end()
        self._harmony = self._harmony or tag.startswith("harmony")

    def _begin_text(self, start: int) -> None:
        if self.removed:
            self._at = start
            self.removed[-1] = self.removed[-1]._replace(end=self._place + start)
        self._state, self._fence, self._line, self._ticks, self._opened = _TEXT, "", "", 0, False

    def _skip_blank(self, start: int) -> int:
        found = _BLANK.match(self._held, start)
        return found.end() if found else start

    def _at_start(self, *, final: bool) -> bool:
        self._searched = self._skip_blank(max(self._searched, self._at))
        opening, form = TAG.match(self._held, self._searched), _OPENING.match(self._held, self._searched)
        tag = form.lastgroup if form else opening["tag"] if opening and not opening["slash"] else ""
        if tag and (found := form or opening):
            self._begin_block(found, tag, _INSIDE)
            self._from = self._place + self._at
            self._at = self._searched if self._certain else self._at
            return True
        if not final and (self._searched == len(self._held) or self._may_open()):
            return False
        self._begin_text(self._searched)
        return True

    @property
    def _certain(self) -> bool:
        return self._tag not in _FORMS or _FORMS[self._tag].certain

    def _may_open(self) -> bool:
        rest = self._held[self._searched : self._searched + 2 * _MOST_HEADER]
        return bool(_PARTIAL_TAG.fullmatch(self._held, self._searched)) or any(
            start.startswith(rest) or (rest.startswith(start) and len(rest) < _MOST_HEADER and "\n" not in rest)
            for form in _FORMS.values()
            for start in form.beginnings
        )

    def _find_end(self, *, final: bool) -> int | None:
        closing = _CLOSING[self._tag].search(self._held, self._searched)
        if closing and (final or closing.end() < len(self._held)):
            return closing.end()
        self._searched = max(self._searched, len(self._held) - _MOST_TAG)
        return None

    def _inside(self, *, final: bool) -> bool:
        end = self._find_end(final=final)
        if end is not None and (self._certain or self._skip_blank(end) < len(self._held)):
            self._remove(end)
        elif not final:
            self._at = max(self._at, self._searched - 1) if self._certain else self._at
            return False
        elif self._certain:
            self._remove(len(self._held), closed=False)
        else:
            self._begin_text(self._skip_blank(self._at))
        return True

    def _pending(self, *, final: bool) -> bool:
        """Keep a block in the middle of the text once its end has arrived. Return True if it has."""
        end = self._find_end(final=final)
        if end is not None:
            self._state = _TEXT
            self._show(end)
        elif final:
            self._remove(len(self._held), closed=False)
        return end is not None

    def _in_text(self, *, final: bool) -> bool:
        found = TAG.search(self._held, self._at)
        if found is None:
            stop = _STOP.search(self._held, self._at) if self._harmony else None
            partial = stop or (None if final else _PARTIAL_TAG.search(self._held, self._at))
            self._show(partial.start() if partial else len(self._held))
            if stop and final:
                self._from = self._place + self._at
                self._remove(len(self._held))
            return False
        self._show(found.start())
        alone = not self._line.strip()
        if fence_after(self._fence, self._line)[1] or self._ticks % 2:
            self._show(found.end())
        elif not found["slash"]:
            self._opened = True
            if alone:
                self._begin_block(found, found["tag"], _PENDING)
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
