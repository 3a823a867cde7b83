"""Splicing: a part is put into an answer, and every other byte of it stays as it is (surgical retry)."""

from __future__ import annotations

import re
from collections.abc import Collection

from api_client.contract.marker import marker
from worker.enforcement.documents import header_lines
from worker.enforcement.documents.adr import Adr, Section
from worker.enforcement.documents.content import has_content
from worker.enforcement.documents.document import parse
from worker.enforcement.documents.fences import may_hold_fences
from worker.enforcement.documents.part import FILES
from worker.enforcement.documents.titles import key, rank
from worker.enforcement.markdown.scan import outline

_FENCE_MARK = re.compile(r" {0,3}(`{3,}|~{3,})")


def only_adr(answer: str) -> Adr | None:
    """The answer's ADR, when there is exactly one and its text can be edited where it stands."""
    adrs = parse(answer).adrs
    return adrs[0] if len(adrs) == 1 and adrs[0].offset >= 0 else None


def editable(adr: Adr) -> bool:
    """True when single keys of the ADR's header can be exchanged."""
    return adr.header is not None and header_lines.by_lines(adr.yaml_text)


def put_marker(answer: str, step: str) -> str:
    """The answer with a marker for the step: in the place of the marker it ends with, else at the end."""
    document = parse(answer)
    last = document.markers[-1] if document.markers else None
    if last and not answer[last.end :].strip():
        return answer[: last.start] + marker(step) + answer[last.end :]
    eol = _eol(answer)
    fences = document.out.fences if may_hold_fences(answer) else []
    last_fence = fences[-1] if fences else None
    if (
        last_fence
        and last_fence.top
        and not last_fence.closed
        and (mark := _FENCE_MARK.match(_line(answer, last_fence.start)))
    ):
        answer += ("" if answer.endswith("\n") else eol) + mark[1]  # nothing after an open fence would be seen
    return answer + blank_line(answer, eol) + marker(step)


def put_header(answer: str, header: str) -> str:
    """The answer with this YAML in the place of its ADR's header, or before the ADR when it has none.

    Keys of the old header that the new one lacks are kept. The answer itself when they cannot be.
    """
    adr = only_adr(answer)
    if adr is None:
        return answer
    old = adr.yaml_text.replace("\r\n", "\n").rstrip("\n") if adr.header else ""
    kept = header_lines.keeping(header.strip("\n"), old)
    if kept is None:
        return answer
    shown = _with_eol(f"---\n{kept}\n---", answer)
    if adr.header:
        start, end = (adr.char_of(line) for line in adr.header_lines)
        return answer[:start] + shown + _eol(answer) + answer[min(end, len(answer)) :]
    start = adr.char_of(adr.start)
    before = answer[:start]
    return before + blank_line(before, _eol(answer)) + shown + _eol(answer) * 2 + answer[start:]


def put_key(answer: str, name: str, lines: str, named: Collection[int] = ()) -> str:
    """The answer with these lines for one key of its ADR's header; the answer itself when that cannot be done surely.

    Args:
        answer: the text the ADR stands in.
        name: the key.
        lines: the key and its value.
        named: lines of the old value of ``files``, from 0, that issues named: other paths must stay.
    """
    adr = only_adr(answer)
    if adr is None or not adr.header:
        return answer
    text = adr.yaml_text
    old = header_lines.key_lines(text, name)
    if name == FILES and old and not (lines := header_lines.with_lists_of(lines, old, named) or ""):
        return answer
    if "\r\n" in text:
        lines = "\n".join(f"{line}\r" for line in lines.split("\n"))
    after = header_lines.with_key(text, name, lines)
    start, end = adr.char_of(adr.header[0]), adr.char_of(adr.header[1])
    return answer if after is None else answer[:start] + after + answer[end:]


def put_section(answer: str, title: str, body: str) -> str:
    """The answer with this section of its ADR.

    Text below an empty heading, in the place of the text that a section has, else a new section where ADRs have it.

    Args:
        answer: the text the ADR stands in.
        title: the section's title.
        body: its text, without heading.
    """
    adr = only_adr(answer)
    if adr is None:
        return answer
    eol, body = _eol(answer), _with_eol(_closed(body), answer)
    present = [section for section in adr.sections if key(section.title) == key(title)]
    if present:
        ranges = [_body_range(answer, adr, section) for section in present]
        start, end = next((one for one in ranges if not has_content(answer[slice(*one)])), ranges[0])
        head = answer[:start] if answer[:start].endswith("\n") else answer[:start] + eol
        if has_content(answer[start:end]):
            return head + eol + body + answer[end:]
        return head + eol + body + eol + answer[start:]
    at = _place(answer, adr, title)
    before, rest = answer[:at], answer[at:]
    marks = "#" * (adr.sections[0].level if adr.sections else 2)
    last = eol if before.endswith("\n") else ""
    gap = last if not rest else "" if rest.startswith(("\n", "\r\n")) else eol * 2
    return f"{before}{blank_line(before, eol)}{marks} {title}{eol}{eol}{body}{gap}{rest}"


def _closed(body: str) -> str:
    """A body whose last code block ends: else all that follows would be code."""
    fences = outline(body).fences
    if not fences or fences[-1].closed or not fences[-1].top:
        return body
    mark = _FENCE_MARK.match(body.split("\n")[fences[-1].start])
    return f"{body}\n{mark[1]}" if mark else body


def _body_range(answer: str, adr: Adr, section: Section) -> tuple[int, int]:
    """The characters of a section's text, without step markers and blanks at its end."""
    line = section.line + 1
    if not adr.out.lines[section.line].lstrip().startswith("#"):  # the heading is underlined
        while line < section.end and adr.out.lines[line].strip(" \r=-"):
            line += 1
        line += 1
    start = min(adr.char_of(line), len(answer))
    end = min(adr.char_of(section.end), len(answer))
    for mark in reversed(parse(answer).markers):
        if start <= mark.start < end and not answer[mark.end : end].strip():
            end = mark.start
    return start, start + len(answer[start:end].rstrip())


def _place(answer: str, adr: Adr, title: str) -> int:
    """Where a missing section belongs: before the first section that ADRs have after it, else at the ADR's end."""
    own = rank(title)
    for present in adr.sections:
        other = rank(present.title)
        if own is not None and other is not None and other > own:
            return adr.char_of(present.line)
    end = min(adr.char_of(adr.end) - 1, len(answer))
    inside = [m for m in parse(answer).markers if adr.char_of(adr.start) <= m.start < end]
    return inside[-1].start if inside and not answer[inside[-1].end : end].strip() else end


def _line(text: str, number: int) -> str:
    return parse(text).out.lines[number]


def blank_line(text: str, eol: str) -> str:
    """What is missing for a blank line behind a text; nothing behind an empty one."""
    tail = text[-4:].replace("\r", "")
    return eol * max(2 - (len(tail) - len(tail.rstrip("\n"))), 0) if text.strip("\ufeff") else ""


def _eol(text: str) -> str:
    """The text's line ending."""
    return "\r\n" if "\r\n" in text else "\n"


def _with_eol(piece: str, text: str) -> str:
    """A piece with the text's line endings."""
    return piece.replace("\r\n", "\n").replace("\n", _eol(text))
