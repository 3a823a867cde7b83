"""The step marker: its form, and texts without it (ADR-038 "Step Marker Validator"; ADR-034 Phase 3).

The worker's Markdown parser decides once which markers of an answer count: those outside code, quotes and YAML headers.
The decision travels with the answer as *spans*.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

STEPS = ("what", "why", "constraints", "generate", "finalize", "done")
#: Step that only the fallback writes, when nothing shows the real step (ADR-036).
UNKNOWN = "unknown"

#: Start and end of a marker in the text. The span of the answer's own marker at the end includes the white space around
#: it.
Span = tuple[int, int]
#: Most markers stored of an answer besides its own one; further markers stay visible.
MAX_SPANS = 100

# Every quantifier is bounded and none overlaps the next: 200 kB of "<!--" or blanks stay linear.
PATTERN = re.compile(r"<!--\s{0,40}[Ss][Tt][Ee][Pp]\s{0,40}:([^>]{0,200})-->")
#: Pieces of a marker; a growing text may end after any of them.
_PIECES = ("!", "-", r"-\s{0,40}", "[Ss]", "[Tt]", "[Ee]", r"[Pp]\s{0,40}", ":")


def _compile_beginning() -> re.Pattern[str]:
    rest = r"[^>]{0,202}\Z|[^>]{0,200}-->"
    for piece in reversed(_PIECES):
        rest = rf"\Z|{piece}(?:{rest})"
    return re.compile(f"<(?:{rest})")


#: A marker, or text that may become one: a growing text is shown up to here.
BEGINNING = _compile_beginning()


@dataclass(frozen=True, slots=True)
class Marker:
    """A step marker (``<!-- STEP: what -->``) in an answer: the step as written, and its position in the text."""

    value: str
    start: int
    end: int

    @property
    def step(self) -> str | None:
        """Return the name of the step in lower case, or None if no such step exists."""
        step = self.value.lower()
        return step if step in STEPS else None


def format_marker(step: str) -> str:
    """Return the HTML comment that marks an answer with a step, such as ``<!-- STEP: what -->``."""
    return f"<!-- STEP: {step} -->"


def find_markers(text: str) -> list[Marker]:
    """Return everything in a text that looks like a step marker, in order."""
    return [Marker(found[1].strip(), found.start(), found.end()) for found in PATTERN.finditer(text)]


def find_marker_spans(text: str, markers: Sequence[Marker]) -> tuple[Span, ...]:
    """Return the positions of an answer's step markers (``<!-- STEP: what -->``), given those outside code and quotes.

    A marker at the end includes the white space around it.
    """
    inner, end = list(markers), len(text)
    while inner and not text[inner[-1].end : end].strip():
        end = inner.pop().start
    own = [(len(text[:end].rstrip()), len(text))] if end < len(text) and len(inner) < len(markers) else []
    return (*((m.start, m.end) for m in inner[-MAX_SPANS:]), *own)


def read_spans(pairs: Any, text: str) -> tuple[Span, ...]:
    """Parse stored positions of step markers, dropping those that do not fit the text.

    If ``pairs`` is no list, the markers at the end of the text count.
    """
    if not isinstance(pairs, list):
        return tuple(span for span in find_marker_spans(text, find_markers(text)) if span[1] == len(text))
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


def strip_own_marker(text: str, spans: Sequence[Span]) -> str:
    """Return the answer without the step marker at its end."""
    return text[: spans[-1][0]] if spans and spans[-1][1] == len(text) else text


def strip_all_markers(text: str, spans: Sequence[Span]) -> str:
    """Return the answer without any of its step markers, for pages that would show them as text."""
    kept = strip_own_marker(text, spans)
    pieces: list[str] = []
    past, bare = 0, True  # bare: the line so far is blank
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
