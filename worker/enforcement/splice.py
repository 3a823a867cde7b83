"""Splicing: parts of a new text are put into an answer, and every other byte stays as it is (surgical retry)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from worker.enforcement.adr import Adr
from worker.enforcement.attempt import Attempt, best
from worker.enforcement.document import parse
from worker.enforcement.marker import marker
from worker.enforcement.part import STEP_MARKER, YAML_HEADER, section_title
from worker.enforcement.step import strip_marker

#: A text shorter than this share of the answer before it is a fragment, if that answer has some length.
_FRAGMENT_SHARE, _SOME_LENGTH = 0.3, 200

_FENCE_MARK = re.compile(r" {0,3}(`{3,}|~{3,})")


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


def put_marker(answer: str, step: str) -> str:
    """The answer with a marker for the step: in the place of the marker it ends with, else at the end."""
    document = parse(answer)
    last = document.markers[-1] if document.markers else None
    if last and not answer[last.end :].strip():
        return answer[: last.start] + marker(step) + answer[last.end :]
    eol = _eol(answer)
    last_fence = document.out.fences[-1] if document.out.fences else None
    if (
        last_fence
        and last_fence.top
        and not last_fence.closed
        and (mark := _FENCE_MARK.match(_line(answer, last_fence.start)))
    ):
        answer += ("" if answer.endswith("\n") else eol) + mark[1]  # nothing after an open fence would be seen
    return answer + _gap(answer) + marker(step)


def put_header(answer: str, adr: Adr, header: str) -> str:
    """The answer with this header in the place of the ADR's, or before the ADR when it has none."""
    if adr.header:
        start, end = adr.char_of(adr.header[0] - 1), adr.char_of(adr.header[1] + 1)
        return answer[:start] + _with_eol(header, answer) + _eol(answer) + answer[min(end, len(answer)) :]
    start = adr.char_of(adr.start)
    return answer[:start] + _with_eol(header, answer) + _eol(answer) * 2 + answer[start:]


def put_section(answer: str, adr: Adr, title: str, section: str, order: Sequence[str]) -> str:
    """The answer with this section: its content below an empty heading, else all of it where the order wants it.

    Args:
        answer: the text the ADR stands in.
        adr: the ADR.
        title: the section's title.
        section: heading and content.
        order: the required titles, in their order.
    """
    eol = _eol(answer)
    for present in adr.sections:
        if present.title.casefold() == title.casefold():
            content = section.partition("\n")[2].strip("\n")
            at = adr.char_of(present.line + 1)
            head = answer[:at] if answer[:at].endswith("\n") else answer[:at] + eol
            return head + eol + _with_eol(content, answer) + eol + answer[at:]
    at = _place(adr, title, order, answer)
    before = answer[:at].rstrip()
    gap = answer[len(before) : at]
    if gap.count("\n") < 2:
        gap = eol * 2
    return (
        before + gap + _with_eol(section, answer) + eol * 2 + answer[at:].lstrip("\r\n")
        if answer[at:].strip()
        else (before + gap + _with_eol(section, answer) + answer[at:])
    )


def _place(adr: Adr, title: str, order: Sequence[str], answer: str) -> int:
    """Where a missing section belongs: before the required sections that follow it, else at the ADR's end."""
    titles = [name.casefold() for name in order]
    rank = titles.index(title.casefold()) if title.casefold() in titles else len(titles)
    for present in adr.sections:
        name = present.title.casefold()
        if name in titles and titles.index(name) > rank:
            return adr.char_of(present.line)
    end = min(adr.char_of(adr.end), len(answer)) if adr.end < len(adr.out.lines) or adr.first_line else len(answer)
    if adr.first_line and adr.end == len(adr.out.lines):
        end = adr.char_of(adr.end) - 1  # the line break before the closing fence
    inside = [m for m in parse(answer).markers if adr.char_of(adr.start) <= m.start < end]
    return inside[-1].start if inside and not answer[inside[-1].end : end].strip() else end


def _spliced(answer: str, pieces: Pieces, asked: set[str]) -> str:
    """The answer with the requested parts that the pieces offer."""
    adrs = parse(answer).adrs
    if YAML_HEADER in asked and pieces.header and len(adrs) == 1 and adrs[0].offset >= 0:
        answer = put_header(answer, adrs[0], pieces.header)
    order = [title for part in asked if (title := section_title(part))]
    offered: Mapping[str, tuple[str, str]] = {t.casefold(): (t, s) for t, s in pieces.sections.items()}
    from_table = [title for title in REQUIRED_ORDER if title in order] + [t for t in order if t not in REQUIRED_ORDER]
    for title in from_table:
        adrs = parse(answer).adrs
        if title.casefold() in offered and len(adrs) == 1 and adrs[0].offset >= 0:
            answer = put_section(answer, adrs[0], *offered[title.casefold()], REQUIRED_ORDER)
    if STEP_MARKER in asked and pieces.step:
        answer = put_marker(answer, pieces.step)
    return answer


#: The order in which an ADR's required sections stand (ADR-038 section 3).
REQUIRED_ORDER = ("Kontext", "Entscheidung", "Akzeptanzkriterien")


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


def _line(text: str, number: int) -> str:
    return parse(text).out.lines[number]


def _gap(answer: str) -> str:
    """What is missing for a blank line behind an answer; nothing behind an empty one."""
    tail = answer[-4:].replace("\r", "")
    return _eol(answer) * max(2 - (len(tail) - len(tail.rstrip("\n"))), 0) if answer else ""


def _eol(text: str) -> str:
    """The text's line ending."""
    return "\r\n" if "\r\n" in text else "\n"


def _with_eol(piece: str, text: str) -> str:
    """A piece with the text's line endings."""
    return piece.replace("\r\n", "\n").replace("\n", _eol(text))
