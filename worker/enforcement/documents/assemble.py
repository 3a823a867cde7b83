"""The answer that counts for a new text: the text itself, or its parts put into the answer before it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from worker.enforcement.attempt import Attempt, best
from worker.enforcement.documents.adr import Adr
from worker.enforcement.documents.document import parse
from worker.enforcement.documents.part import REQUIRED_SECTIONS, STEP_MARKER, YAML_HEADER, section_title
from worker.enforcement.documents.splice import put_header, put_marker, put_section
from worker.enforcement.documents.step import strip_marker

#: A text shorter than this share of the answer before it is a fragment, if that answer has some length.
_FRAGMENT_SHARE, _SOME_LENGTH = 0.3, 200


def assemble(history: Sequence[Attempt], text: str) -> str:
    """The answer that counts for a new raw text, given the attempts before it.

    A text that holds nothing but requested parts is spliced into the best answer so far; a fragment never replaces an
    answer (only its requested parts are taken); any other text is the answer itself.
    """
    base = best(history)
    if base is None or not base.errors:
        return text
    asked = {issue.part for attempt in (base, history[-1]) for issue in attempt.errors if not issue.file}
    pieces = read_pieces(text)
    if pieces.whole(asked) and not _is_fragment(pieces.body, base.answer):
        return text
    return _spliced(base.answer, pieces, asked)


@dataclass(slots=True)
class Pieces:
    """The parts that a text offers: a step, a YAML header with its ``---`` lines, and level 2 sections by title."""

    body: str
    step: str | None = None
    header: str = ""
    titled: bool = False
    sections: dict[str, str] = field(default_factory=dict)

    def whole(self, asked: set[str]) -> bool:
        """True unless the text consists of requested parts only."""
        if not self.body.strip():
            return False
        if self.titled or not (self.header or self.sections):
            return True
        wanted = {title.casefold() for part in asked if (title := section_title(part))}
        return bool(self.header and YAML_HEADER not in asked) or any(t.casefold() not in wanted for t in self.sections)


def read_pieces(text: str) -> Pieces:
    """Take a text apart; a fence around all of it is taken off first."""
    text = _unfenced(text)
    body = strip_marker(text)
    markers = parse(text).markers
    pieces = Pieces(body, step=next((m.step for m in reversed(markers) if m.step), None))
    out = parse(body).out
    tops = [heading for heading in out.headings if heading.top and heading.level <= 2]
    pieces.titled = any(heading.level == 1 for heading in tops)
    for heading, end in zip(tops, [*[h.line for h in tops[1:]], len(out.lines)], strict=bool(tops)):
        if heading.level == 2:
            pieces.sections[heading.title] = "\n".join(out.lines[heading.line : end]).strip()
    if out.headers:
        start, end = out.headers[0]
        pieces.header = "\n".join(out.lines[start:end]).strip()
    return pieces


def _spliced(answer: str, pieces: Pieces, asked: set[str]) -> str:
    """The answer with the requested parts that the pieces offer."""
    if YAML_HEADER in asked and pieces.header and (adr := _only_adr(answer)):
        answer = put_header(answer, adr, pieces.header)
    wanted = {title.casefold() for part in asked if (title := section_title(part))}
    order = [title.casefold() for title in REQUIRED_SECTIONS]
    offered = [(title, text) for title, text in pieces.sections.items() if title.casefold() in wanted]
    for title, text in sorted(
        offered, key=lambda one: order.index(one[0].casefold()) if one[0].casefold() in order else 9
    ):
        if adr := _only_adr(answer):
            answer = put_section(answer, adr, title, text)
    return put_marker(answer, pieces.step) if STEP_MARKER in asked and pieces.step else answer


def _only_adr(answer: str) -> Adr | None:
    """The answer's ADR, when there is exactly one and its text can be edited where it stands."""
    adrs = parse(answer).adrs
    return adrs[0] if len(adrs) == 1 and adrs[0].offset >= 0 else None


def _is_fragment(body: str, answer: str) -> bool:
    before = len(strip_marker(answer).strip())
    return before >= _SOME_LENGTH and len(body.strip()) < _FRAGMENT_SHARE * before


def _unfenced(text: str) -> str:
    """The text in a fence, when the fence is all there is but a marker and an introducing line."""
    document = parse(text)
    if len(document.out.fences) != 1 or not (fence := document.out.fences[0]).top:
        return text
    lines = document.out.lines
    around = [
        line for line in lines[: fence.start] + lines[fence.end :] if line.strip() and not line.startswith("<!--")
    ]
    if len(around) > 1 or (fence.info and not fence.is_document and fence.info not in ("html", "yaml", "text")):
        return text
    tail = "".join(f"\n{line}" for line in lines[fence.end :])
    return "\n".join(lines[fence.start + 1 : fence.end - fence.closed]) + tail
