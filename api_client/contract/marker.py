"""The step marker: how it looks, how a text is shown without it. Worker and relay both use this module alone.

Which markers of an answer count is decided once, by the worker's Markdown parser: those outside code, quotes and YAML
headers (``worker.enforcement.documents.document``). The decision travels with the answer as *spans*.

Source: ADR-038 "Step Marker Validator"; ADR-034 phase 3.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

STEPS = ("what", "why", "constraints", "generate", "finalize", "done")
#: Written by the fallback alone, when nothing shows the step (ADR-036).
UNKNOWN = "unknown"

#: Where a marker is: its first character, and the one after its last. The answer's own marker is the last span, if
#: the answer ends with it; it then takes the white space before it and all up to the end.
Span = tuple[int, int]
#: Spans that are kept of one answer besides its own marker; a text with more shows the first ones.
MAX_SPANS = 100

# Every quantifier is bounded and none overlaps the next, so that 200 kB of "<!--" or of blanks stay linear.
PATTERN = re.compile(r"<!--\s{0,40}[Ss][Tt][Ee][Pp]\s{0,40}:([^>]{0,200})-->")
#: The pieces of a marker, each of which may be the last that has come so far.
_PIECES = ("!", "-", r"-\s{0,40}", "[Ss]", "[Tt]", "[Ee]", r"[Pp]\s{0,40}", ":")


def _beginning() -> re.Pattern[str]:
    rest = r"[^>]{0,202}\Z|[^>]{0,200}-->"
    for piece in reversed(_PIECES):
        rest = rf"\Z|{piece}(?:{rest})"
    return re.compile(f"<(?:{rest})")


#: A marker, or what could become one when more text comes: a text that is still growing is shown up to here.
BEGINNING = _beginning()


@dataclass(frozen=True, slots=True)
class Marker:
    """A step marker: the value as written, and the characters it takes."""

    value: str
    start: int
    end: int

    @property
    def step(self) -> str | None:
        """The step it names, in lower case; None when it is another word than the six."""
        step = self.value.lower()
        return step if step in STEPS else None


def marker(step: str) -> str:
    """The marker for a step, as ADR-034 writes it."""
    return f"<!-- STEP: {step} -->"


def candidates(text: str) -> list[Marker]:
    """Everything that looks like a marker, wherever it is."""
    return [Marker(found[1].strip(), found.start(), found.end()) for found in PATTERN.finditer(text)]


def spans_of(text: str, counting: Sequence[Marker]) -> tuple[Span, ...]:
    """The spans of an answer. ``counting``: its markers that count, in the text's order."""
    inner, end = list(counting), len(text)
    while inner and not text[inner[-1].end : end].strip():
        end = inner.pop().start
    own = [(len(text[:end].rstrip()), len(text))] if end < len(text) and len(inner) < len(counting) else []
    return (*((m.start, m.end) for m in inner[-MAX_SPANS:]), *own)


def read_spans(pairs: Any, text: str) -> tuple[Span, ...]:
    """The spans of the text's markers that a record or an event names. Nothing but markers is ever cut.

    ``pairs``: a list of them; anything else, as of an older version, means that the markers at the end count.
    """
    if not isinstance(pairs, list):
        return tuple(span for span in spans_of(text, candidates(text)) if span[1] == len(text))
    sound, past = list[Span](), 0
    for span in pairs:
        match span:
            case [int(start), int(end)] if past <= start < end <= len(text):
                if PATTERN.sub("", text[start:end]).strip():
                    break
            case _:
                break
        past = end
        sound.append((start, end))
    return tuple(sound)


def answer_text(text: str, spans: Sequence[Span]) -> str:
    """The answer but for its own marker: the text of every reply, byte for byte what response.md has before it."""
    return text[: spans[-1][0]] if spans and spans[-1][1] == len(text) else text


def page_text(text: str, spans: Sequence[Span]) -> str:
    """The answer without any marker that counts, for pages that draw comments as text. A line of markers goes whole."""
    kept = answer_text(text, spans)
    pieces: list[str] = []
    past, bare = 0, True  # bare: what is kept of the line so far is blank
    for start, end in spans:
        if end > len(kept):
            break
        before = kept[past:start]
        bare = not before.rpartition("\n")[2].strip() and (bare or "\n" in before)
        close = kept.find("\n", end)
        if bare and close >= 0 and not kept[end:close].strip():
            start, end = max(kept.rfind("\n", past, start) + 1, past), close + 1
        pieces.append(kept[past:start])
        past = max(past, end)
    return "".join([*pieces, kept[past:]])


# An answer that still grows, shown without what is, or may become, a step marker. A draft is not final: its end decides
# which markers count. So this hides them all, except in fences, code spans and quotes, where none counts. Where that
# was too much, the accepted answer puts it right.

#: Over how many line ends, and how many characters it has at most.
_MOST_LINE_ENDS, _MOST_CHARS = 8, 350
_FENCE = re.compile(r"[ \t>]{0,32}(?:[-*+][ \t]{1,4})?(`{3,}|~{3,})(.*)")
_QUOTE = re.compile(r" {0,3}>")


class _Lines:
    """The lines of a text, one after the other; lines that share a marker are one line with a line end in it."""

    def __init__(self) -> None:
        self._fence = ""
        self.held = ""  # lines that end inside what may be a marker, with their line ends

    def take(self, line: str) -> list[tuple[str, bool]]:
        """One more line, without its end; returns the lines that are whole now, and whether each is code or a quote."""
        line = self.held + line
        if self._goes_on(line):
            self.held = f"{line}\n"
            return []
        self.held = ""
        return self._whole(line)

    def _goes_on(self, line: str) -> bool:
        if line.count("\n") >= _MOST_LINE_ENDS or fence_after(self._fence, line)[1]:
            return False
        tail = f"{line[-_MOST_CHARS:]}\n"
        return any(found.end() == len(tail) for found in BEGINNING.finditer(tail))

    def _whole(self, line: str) -> list[tuple[str, bool]]:
        first, line_end, rest = line.partition("\n")
        shared = any(found.start() < len(first) < found.end() for found in PATTERN.finditer(line))
        self._fence, in_code = fence_after(self._fence, first)
        if shared or not line_end:
            return [(line, in_code)]
        # It was no marker after all: the lines are what they are, each for itself.
        return [(first, in_code), *(whole for other in rest.split("\n") for whole in self.take(other))]


def fence_after(fence: str, line: str) -> tuple[str, bool]:
    """The fence that is open after ``line`` ('' when none is), and whether the line itself is code or a quote."""
    match = _FENCE.match(line)
    if fence:
        closes = match and match[1].startswith(fence) and not match[2].strip()
        return ("" if closes else fence), True
    opens = match and not (match[1][0] == "`" and "`" in match[2])
    return (match[1], True) if match and opens else ("", _QUOTE.match(line) is not None)


def _strip(line: str) -> str:
    """The line without markers; one behind an odd number of back quotes is inside inline code."""
    parts: list[str] = []
    end = ticks = 0
    for match in PATTERN.finditer(line):
        ticks += line.count("`", end, match.start())
        parts.append(line[end : match.start() if ticks % 2 == 0 else match.end()])
        end = match.end()
    return "".join([*parts, line[end:]])


class VisibleText:
    """A growing answer as its reader may see it: no marker, and nothing that could turn out to be the start of one.

    The rest of a line behind a possible marker waits for the line's end, trailing white space for the text behind it:
    whether they stay depends on what follows. It does not matter into which pieces the text is cut.
    """

    def __init__(self) -> None:
        self._lines = _Lines()
        self._line = ""  # the last line so far, raw
        self._given = self._scanned = 0  # characters of it that are shown, and that hold no marker
        self._begun = False  # a line is shown already, so the next one starts with a line end
        self._space = ""

    def feed(self, piece: str) -> str:
        """Add a piece of the raw text; returns what the reader sees more."""
        self._line += piece
        *ended, self._line = self._line.split("\n") if "\n" in piece else [self._line]
        parts = [self._closed(*whole) for line in ended for whole in self._lines.take(line)]
        text = self._space + "".join(parts) + self._open_line()
        seen = text.rstrip()
        self._space = text[len(seen) :]
        return seen

    def _closed(self, line: str, in_code: bool) -> str:
        shown = line if in_code else _strip(line)
        more = self._shown(shown[self._given :]) if shown.strip() or not line.strip() else ""
        self._given = self._scanned = 0
        return more

    def _open_line(self) -> str:
        if self._lines.held:
            return ""  # the line before it ends inside what may be a marker, and waits for this one
        found = BEGINNING.search(self._line, self._scanned)
        self._scanned = found.start() if found else len(self._line)
        more = self._line[self._given : self._scanned]
        if not (self._given or more.strip()):
            return ""  # a line of white space and markers goes away as a whole
        more = self._shown(more)
        self._given = self._scanned
        return more

    def _shown(self, more: str) -> str:
        line_end = "\n" if self._begun and not self._given else ""
        self._begun = True
        return line_end + more
