"""Splicing: a part is put into an answer, and every other byte of it stays as it is (surgical retry)."""

from __future__ import annotations

import re

from worker.enforcement.documents.adr import Adr
from worker.enforcement.documents.document import parse
from worker.enforcement.documents.marker import marker
from worker.enforcement.documents.part import REQUIRED_SECTIONS

_FENCE_MARK = re.compile(r" {0,3}(`{3,}|~{3,})")


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
        start, end = (adr.char_of(line) for line in adr.header_lines)
        return answer[:start] + _with_eol(header, answer) + _eol(answer) + answer[min(end, len(answer)) :]
    start = adr.char_of(adr.start)
    return answer[:start] + _with_eol(header, answer) + _eol(answer) * 2 + answer[start:]


def put_section(answer: str, adr: Adr, title: str, section: str) -> str:
    """The answer with this section: its content below an empty heading, else all of it where ADRs have it.

    Args:
        answer: the text the ADR stands in.
        adr: the ADR.
        title: the section's title.
        section: heading and content.
    """
    eol, section = _eol(answer), _with_eol(section, answer)
    for present in adr.sections:
        if present.title.casefold() == title.casefold():
            at = adr.char_of(present.line + 1)
            head = answer[:at] if answer[:at].endswith("\n") else answer[:at] + eol
            return head + eol + section.partition("\n")[2].strip("\r\n") + eol + answer[at:]
    at = _place(answer, adr, title)
    before, rest = answer[:at].rstrip(), answer[at:]
    gap = answer[len(before) : at]
    return before + eol * 2 + section + (gap if "\n" in gap or not rest else eol * 2) + rest


def _place(answer: str, adr: Adr, title: str) -> int:
    """Where a missing section belongs: before the required sections that follow it, else at the ADR's end."""
    order = [name.casefold() for name in REQUIRED_SECTIONS]
    later = order[order.index(title.casefold()) + 1 :] if title.casefold() in order else []
    for present in adr.sections:
        if present.title.casefold() in later:
            return adr.char_of(present.line)
    end = adr.char_of(adr.end) - 1
    inside = [m for m in parse(answer).markers if adr.char_of(adr.start) <= m.start < end]
    return inside[-1].start if inside and not answer[inside[-1].end : end].strip() else end


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
