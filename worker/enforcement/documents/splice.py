"""Parts of an answer: find, read and replace them, and change no other byte (surgical retry)."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from api_client.contract.step_marker import format_marker
from worker.enforcement.documents import header_lines
from worker.enforcement.documents.adr import Adr, Section
from worker.enforcement.documents.content import ANCHOR, is_json
from worker.enforcement.documents.document import parse_document
from worker.enforcement.documents.outline import BOM, CodeFence, Outline, may_hold_fences, parse_outline
from worker.enforcement.documents.part_names import (
    FILES,
    fence_part,
    field_part,
    header_key,
    lines_part,
    lines_range,
    parse_fence_part,
    section_part,
    section_title,
)
from worker.enforcement.documents.step import strip_marker
from worker.enforcement.documents.titles import section_key, section_rank

_COMMENT = re.compile(r"<!--.*?(?:-->|\Z)", re.DOTALL)
_LINE_ENDS = re.compile(r"[\r\n]*")
_FENCE_MARK = re.compile(r" {0,3}(`{3,}|~{3,})")


@dataclass(frozen=True, slots=True)
class Part:
    """A replaceable part of an answer: a section, a header field, a code block or a range of lines."""

    name: str

    @classmethod
    def section(cls, title: str) -> Part:
        return cls(section_part(title))

    @classmethod
    def field(cls, name: str) -> Part:
        """Return the ``Part`` for a key of the answer's YAML header, together with its value."""
        return cls(field_part(name))

    @classmethod
    def fence(cls, language: str, number: int = 1) -> Part:
        """Return the ``Part`` for the code inside a closed code block of this language.

        ``number`` counts the blocks of the language from 1; an empty language means any. Raises ``ValueError``.
        """
        if number < 1:
            raise ValueError(f"number must be 1 or more, not {number}")
        return cls(fence_part(language, number))

    @classmethod
    def lines(cls, first: int, last: int | None = None) -> Part:
        """Return the ``Part`` for a range of lines, or for a single line without ``last``. Raises ``ValueError``."""
        last = first if last is None else last
        if not 1 <= first <= last:
            raise ValueError(f"lines {first}-{last} run backwards, or begin before line 1")
        return cls(lines_part(first, last))

    def __str__(self) -> str:
        return self.name

    def find(self, answer: str) -> tuple[int, int] | None:
        """Return the start and end position of this part in an answer, or None if the part is missing."""
        found = self._find_lines(answer)
        if found is None:
            return None
        document = parse_document(answer)
        start, end = document.position_of(found[0]), document.position_of(found[1])
        if start < end and answer[end - 1 : end] == "\n":
            end -= 1
        if answer[max(end - 1, start) : end] == "\r":
            end -= 1
        inside = answer[start:end]
        if section_title(self.name) and inside.strip():
            return start + len(inside) - len(inside.lstrip()), start + len(inside.rstrip())
        return start, max(start, end)

    def text(self, answer: str) -> str | None:
        found = self.find(answer)
        return None if found is None else answer[slice(*found)]

    def put(self, answer: str, text: str) -> str:
        """Return the answer with this part's text replaced, or the unchanged answer if that is impossible.

        A missing section is inserted where ADRs have it, else at the end.
        """
        title, name = section_title(self.name), header_key(self.name)
        if only_adr(answer) is not None and (title or name):
            return put_section(answer, title, text) if title else put_key(answer, str(name), text)
        found = self.find(answer)
        if found is None and title:
            return answer if parse_document(answer).adrs else _add_section(answer, title, text)
        if found is None:
            return _insert_block(answer, parse_fence_part(self.name), text)
        start, end = found
        shown = text.strip("\n").replace("\r\n", "\n")
        if fence := self._find_fence(answer):
            indent = " " * fence.indent
            shown = "\n".join(indent + line if line else line for line in shown.split("\n"))
        if title and not answer[start:end].strip():
            shown = f"\n{shown}\n"
        shown = shown.replace("\n", _line_end(answer))
        if start == end and fence and not answer[start:].startswith(("\n", "\r\n")):
            shown += _line_end(answer)
        after = answer[:start] + shown + answer[end:]
        return after if title or _list_fences(after) == _list_fences(answer) or not fence else answer

    def _find_lines(self, answer: str) -> tuple[int, int] | None:
        out = parse_document(answer).out
        if fence := self._find_fence(answer):
            return fence.start + 1, fence.end - 1
        if lines := lines_range(self.name):
            return (lines[0] - 1, lines[1]) if 1 <= lines[0] <= lines[1] <= len(out.lines) else None
        if title := section_title(self.name):
            return _find_section(out, title, _marker_line(answer))
        if name := header_key(self.name):
            return _find_field(only_adr(answer), name)
        return None

    def _find_fence(self, answer: str) -> CodeFence | None:
        wanted = parse_fence_part(self.name)
        if wanted is None:
            return None
        found = closed_fences(answer, wanted[0])
        return found[wanted[1] - 1] if 1 <= wanted[1] <= len(found) else None


def can_replace_directly(part: str, answer: str) -> bool:
    """Return True if a part of an answer can be replaced without parsing the answer as an ADR."""
    if section_title(part):
        return not parse_document(answer).adrs
    if fence := parse_fence_part(part):
        return bool(fence[0]) and fence[1] <= len(closed_fences(answer, fence[0])) + 1
    return Part(part).find(answer) is not None if lines_range(part) else False


def only_adr(answer: str) -> Adr | None:
    """Return the only ADR of an answer, or None if there are several ADRs or the text cannot be edited."""
    adrs = parse_document(answer).adrs
    return adrs[0] if len(adrs) == 1 and adrs[0].offset >= 0 else None


def remove_copies(answer: str, title: str) -> str:
    """Return the answer with only the first section of this title."""
    document, own, end_of_text = parse_document(answer), 0, _marker_line(answer)
    pieces, past = list[str](), 0
    for heading, end in zip(document.out.headings, document.out.section_ends(), strict=True):
        same = heading.top and section_key(heading.title) == section_key(title)
        if not own:
            own = heading.level if same else 0
        elif heading.level < own:
            break
        elif same and heading.level == own:
            pieces.append(answer[past : document.position_of(_line_with_anchors(document.out, heading.line))])
            past = document.position_of(min(_line_with_anchors(document.out, end), end_of_text))
    return "".join([*pieces, answer[past:]])


def put_marker(answer: str, step: str) -> str:
    """Return the answer with a step marker at its end, replacing any earlier marker."""
    document = parse_document(answer)
    last = document.markers[-1] if document.markers else None
    if last and not answer[last.end :].strip():
        return answer[: last.start] + format_marker(step) + answer[last.end :]
    eol = _line_end(answer)
    fences = document.out.fences if may_hold_fences(answer) else []
    last_fence = fences[-1] if fences else None
    if (
        last_fence
        and last_fence.top
        and not last_fence.closed
        and (mark := _FENCE_MARK.match(parse_document(answer).out.lines[last_fence.start]))
    ):
        answer += ("" if answer.endswith("\n") else eol) + mark[1]  # an open fence would hide the marker
    return answer + _blank_line(answer, eol) + format_marker(step)


def put_header(answer: str, header: str) -> str:
    """Return the answer with the YAML header of its ADR replaced, or with a header inserted before the ADR.

    Keys that the new header lacks are kept. The answer stays unchanged if that is impossible.
    """
    if only_adr(answer) is None:
        return answer
    answer = _remove_fenced_header(answer)
    adr = only_adr(answer)
    if adr is None:
        return answer
    old = adr.yaml_text.replace("\r\n", "\n").rstrip("\n") if adr.header else ""
    kept = header_lines.keep_missing_keys(header.strip("\n"), old)
    if kept is None:
        return answer
    shown = _with_eol(f"---\n{kept}\n---", answer)
    if adr.header:
        start, end = (adr.char_of(line) for line in adr.header_lines)
        return answer[:start] + shown + _line_end(answer) + answer[min(end, len(answer)) :]
    start = adr.char_of(adr.start)
    before = answer[:start]
    return before + _blank_line(before, _line_end(answer)) + shown + _line_end(answer) * 2 + answer[start:]


def put_key(answer: str, name: str, lines: str, named: Collection[int] = ()) -> str:
    """Return the answer with the lines of one header key replaced, or the unchanged answer if that is unsafe.

    Lines of the old ``files`` value that issues ``named`` may disappear; all other paths must stay.
    """
    adr = only_adr(answer)
    if adr is None or not adr.header:
        return answer
    text = adr.yaml_text
    old = header_lines.key_lines(text, name)
    if name == FILES and old and not (lines := header_lines.keep_unnamed_paths(lines, old, named) or ""):
        return answer
    if "\r\n" in text:
        lines = "\n".join(f"{line}\r" for line in lines.split("\n"))
    after = header_lines.replace_key(text, name, lines)
    start, end = adr.char_of(adr.header[0]), adr.char_of(adr.header[1])
    return answer if after is None else answer[:start] + after + answer[end:]


def put_section(answer: str, title: str, body: str) -> str:
    """Return the answer with one section of its ADR replaced or inserted. ``body`` has no heading."""
    adr = only_adr(answer)
    if adr is None:
        return answer
    eol, body = _line_end(answer), _with_eol(_close_last_block(body), answer)
    present = [section for section in adr.sections if section_key(section.title) == section_key(title)]
    if len(present) > 1:
        return put_section(_remove_sections(answer, adr, present[1:]), title, body)
    if present:
        start, end = _body_range(answer, adr, present[0])
        head = answer[:start] if answer[:start].endswith("\n") else answer[:start] + eol
        if _COMMENT.sub("", answer[start:end]).strip():
            return head + eol + body + answer[end:]
        return head + eol + body + eol + answer[start:]
    at = _find_section_position(answer, adr, title)
    before, rest = answer[:at], answer[at:]
    marks = "#" * (adr.sections[0].level if adr.sections else 2)
    last = eol if before.endswith("\n") else ""
    gap = last if not rest else "" if rest.startswith(("\n", "\r\n")) else eol * 2
    return f"{before}{_blank_line(before, eol)}{marks} {title}{eol}{eol}{body}{gap}{rest}"


def _line_with_anchors(out: Outline, line: int) -> int:
    """Return the line of a heading, or of the first anchor (``<a id="why"></a>``) that stands alone above it."""
    first = line
    while line and (not (above := out.lines[line - 1].strip()) or ANCHOR.fullmatch(above)):
        line -= 1
        first = line if above else first
    return first


def strip_last_anchors(text: str) -> str:
    """Remove blank lines and anchors from the end of a section's text: they belong to the next heading."""
    lines = text.split("\n")
    while lines and (not (last := lines[-1].strip()) or ANCHOR.fullmatch(last)):
        lines.pop()
    return "\n".join(lines)


def _remove_sections(answer: str, adr: Adr, sections: Sequence[Section]) -> str:
    pieces, past = list[str](), 0
    for section in sections:
        start = adr.char_of(_line_with_anchors(adr.out, section.line))
        end = _body_range(answer, adr, section)[1]
        pieces.append(answer[past:start])
        past = _LINE_ENDS.match(answer, max(start, end)).end()  # type: ignore[union-attr]
    return "".join([*pieces, answer[past:]])


def _remove_fenced_header(answer: str) -> str:
    document, adr = parse_document(answer), only_adr(answer)
    first = adr.first_line + adr.sections[0].line if adr and adr.sections else len(document.out.lines)
    for fence in reversed(document.out.fences if may_hold_fences(answer) else []):
        entries = header_lines.find_entries(document.out.inner_text(fence))
        if fence.top and fence.closed and fence.end <= first and "adr_id" in entries and not fence.is_document:
            start, end = document.position_of(fence.start), document.position_of(fence.end)
            answer = answer[:start] + answer[end:].lstrip("\r\n")
    return answer


def _close_last_block(body: str) -> str:
    fences = parse_outline(body).fences if may_hold_fences(body) else []
    if not fences or fences[-1].closed or not fences[-1].top:
        return body
    mark = _FENCE_MARK.match(body.split("\n")[fences[-1].start])
    return f"{body}\n{mark[1]}" if mark else body


def _body_range(answer: str, adr: Adr, section: Section) -> tuple[int, int]:
    line = section.line + 1
    if not adr.out.lines[section.line].lstrip().startswith("#"):  # an underlined heading
        while line < section.end and adr.out.lines[line].strip(" \r=-"):
            line += 1
        line += 1
    start = min(adr.char_of(line), len(answer))
    end = max(start, min(adr.char_of(_line_with_anchors(adr.out, section.end)), len(answer)))
    marks = parse_document(answer).markers
    at = bisect_left(marks, end, key=lambda mark: mark.start)
    while at and start <= marks[at - 1].start and not answer[marks[at - 1].end : end].strip():
        at -= 1
        end = marks[at].start
    return start, start + len(answer[start:end].rstrip())


def _find_section_position(answer: str, adr: Adr, title: str) -> int:
    own = section_rank(title)
    for present in adr.sections:
        other = section_rank(present.title)
        if own is not None and other is not None and other > own:
            return adr.char_of(_line_with_anchors(adr.out, present.line))
    end = min(adr.char_of(adr.end) - 1, len(answer))
    inside = [m for m in parse_document(answer).markers if adr.char_of(adr.start) <= m.start < end]
    return inside[-1].start if inside and not answer[inside[-1].end : end].strip() else end


def _blank_line(text: str, eol: str) -> str:
    tail = text[-4:].replace("\r", "")
    return eol * max(2 - (len(tail) - len(tail.rstrip("\n"))), 0) if text.strip(BOM) else ""


def _line_end(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"


def _with_eol(piece: str, text: str) -> str:
    return piece.replace("\r\n", "\n").replace("\n", _line_end(text))


def closed_fences(answer: str, language: str) -> list[CodeFence]:
    """Return the closed code blocks in a language, or all closed code blocks if ``language`` is empty."""
    found = parse_document(answer).out.fences if may_hold_fences(answer) else []
    fences = (fence for fence in found if fence.closed)
    return [fence for fence in fences if not language or fence.language == language]


def _list_fences(answer: str) -> list[tuple[str, bool]]:
    return [(fence.info, fence.closed) for fence in parse_document(answer).out.fences]


def _find_section(out: Outline, title: str, end: int) -> tuple[int, int] | None:
    for heading in out.headings:
        if heading.top and section_key(heading.title) == section_key(title):
            later = (other.line for other in out.headings if other.line > heading.line and other.level <= heading.level)
            last = _line_with_anchors(out, next(later, len(out.lines)))
            return heading.line + 1, max(heading.line + 1, min(last, end))
    return None


def _marker_line(answer: str) -> int:
    kept = strip_marker(answer)
    return kept.rstrip("\n").count("\n") + 1 if kept != answer else answer.count("\n") + 1


def _find_field(adr: Adr | None, name: str) -> tuple[int, int] | None:
    if adr is None or not adr.header:
        return None
    block = header_lines.find_entries(adr.yaml_text).get(name)
    if block is None:
        return None
    first = adr.first_line + adr.header[0]
    return first + block.start, first + block.end


def _add_section(answer: str, title: str, text: str) -> str:
    """Return the answer with a section added before the first one that ADRs have later, else at the end."""
    document = parse_document(answer)
    headings = [heading for heading in document.out.headings if heading.top and heading.level > 1]
    level = headings[0].level if headings else 2
    shown, own, eol = f"{'#' * level} {title}\n\n{text.rstrip()}", section_rank(title), _line_end(answer)
    for heading in headings:
        rank = section_rank(heading.title) if heading.level == level else None
        if own is not None and rank is not None and rank > own:
            at = document.position_of(_line_with_anchors(document.out, heading.line)) or int(answer.startswith(BOM))
            before = answer[:at]
            return (
                f"{before}{_blank_line(before, eol)}{_with_eol(_close_last_block(shown), answer)}{eol * 2}{answer[at:]}"
            )
    return _append_text(answer, shown)


def _insert_block(answer: str, fence: tuple[str, int] | None, text: str) -> str:
    """Return the answer with a missing code block added, in place of an unlabelled JSON block or at the end."""
    if fence is None or fence[1] != len(closed_fences(answer, fence[0])) + 1:
        return answer
    mark = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
    block = f"{mark}{fence[0]}\n{text.rstrip()}\n{mark}"
    document = parse_document(answer)
    plain = [
        one
        for one in closed_fences(answer, "")
        if not one.info and fence[0] == "json" and is_json(document.out.inner_text(one))
    ]
    if len(plain) != 1 or plain[0].indent:
        return _append_text(answer, block)
    start, end = document.position_of(plain[0].start), document.position_of(plain[0].end)
    kept = start + len(answer[start:end].rstrip())
    return answer[:start] + block.replace("\n", _line_end(answer)) + answer[kept:]


def _append_text(answer: str, shown: str) -> str:
    document = parse_document(answer)
    last = document.markers[-1] if document.markers else None
    at = last.start if last and not answer[last.end :].strip() else len(answer)
    before, eol = answer[:at], _line_end(answer)
    closed, shown = _close_last_block(before.rstrip()), _with_eol(shown, answer)
    before = before if closed == before.rstrip() else closed  # an open block would hide the text
    return f"{before}{_blank_line(before, eol)}{shown}{eol}" + (eol if at < len(answer) else "") + answer[at:]
