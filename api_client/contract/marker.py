"""The step marker: how it looks, how a text is shown without it. Worker and relay both use this module alone.

Which markers of an answer count is decided once, by the worker's Markdown parser: those outside code, quotes and YAML
headers (``worker.enforcement.documents.document``). The decision travels with the answer as *spans*.

Source: ADR-038 "Step Marker Validator"; ADR-034 Phase 3.
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

    ``pairs``: a list of them; anything else means that the markers at the end count.
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
