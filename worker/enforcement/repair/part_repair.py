"""A part of an answer: found, read and replaced by code, and asked for alone when it is wrong (surgical retry).

docs/own-rule.md shows how your own rules use it.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection
from dataclasses import dataclass

from worker.enforcement.documents import header_lines
from worker.enforcement.documents.adr import Adr
from worker.enforcement.documents.content import has_content
from worker.enforcement.documents.document import parse
from worker.enforcement.documents.fences import language_of_fence
from worker.enforcement.documents.part import (
    fence_of,
    fence_part,
    field_part,
    header_key,
    lines_of,
    lines_part,
    section_part,
    section_title,
)
from worker.enforcement.documents.splice import blank_line, only_adr, put_key, put_section
from worker.enforcement.documents.step import strip_marker
from worker.enforcement.documents.titles import key
from worker.enforcement.markdown.outline import Fence, Outline
from worker.enforcement.replies.evidence import is_json, is_talk, speech
from worker.enforcement.replies.remarks import introduces, is_remark

#: How alike a line and the one in its place are at least, where they share no word of the subject; characters compared.
_ALIKE, _LINE = 0.4, 400


@dataclass(frozen=True, slots=True)
class Part:
    """A section, a field of an ADR's header, a fenced block, or a range of lines.

    ``str(part)`` is its name in ``ValidationIssue.part``, which takes the part itself too. Lines count from 1.
    """

    name: str

    @classmethod
    def section(cls, title: str) -> Part:
        """The text below the heading of this title, of an ADR or of any Markdown."""
        return cls(section_part(title))

    @classmethod
    def field(cls, name: str) -> Part:
        """A key of the YAML header of the answer's one ADR, with its value."""
        return cls(field_part(name))

    @classmethod
    def fence(cls, language: str, number: int = 1) -> Part:
        """The inside of the ``number``-th closed fenced block of a language; an empty language means any.

        Raises:
            ValueError: ``number`` is below 1.
        """
        if number < 1:
            raise ValueError(f"number must be 1 or more, not {number}")
        return cls(fence_part(language, number))

    @classmethod
    def lines(cls, first: int, last: int | None = None) -> Part:
        """Lines of the answer; one line without ``last``.

        Raises:
            ValueError: the range begins before line 1 or ends before it begins.
        """
        last = first if last is None else last
        if not 1 <= first <= last:
            raise ValueError(f"lines {first}-{last} run backwards, or begin before line 1")
        return cls(lines_part(first, last))

    def __str__(self) -> str:
        return self.name

    def find(self, answer: str) -> tuple[int, int] | None:
        """Where its text stands, as characters of the answer, the end excluded; None where there is no such part."""
        found = self._lines(answer)
        if found is None:
            return None
        starts = _starts(answer)
        start, end = starts[found[0]], starts[found[1]]
        if start < end and answer[end - 1 : end] == "\n":
            end -= 1
        if answer[max(end - 1, start) : end] == "\r":
            end -= 1
        inside = answer[start:end]
        if section_title(self.name) and inside.strip():
            return start + len(inside) - len(inside.lstrip()), start + len(inside.rstrip())
        return start, max(start, end)

    def text(self, answer: str) -> str | None:
        """Its text, without the last line end; None where the answer has no such part."""
        found = self.find(answer)
        return None if found is None else answer[slice(*found)]

    def put(self, answer: str, text: str) -> str:
        """The answer with this text in its place, and every other byte as it was.

        A section that is missing comes where ADRs have it, else at the end. The answer itself where there is no place
        for the part, or where the text would change what stands around it.
        """
        title, name = section_title(self.name), header_key(self.name)
        if only_adr(answer) is not None and (title or name):
            return put_section(answer, title, text) if title else put_key(answer, str(name), text)
        found = self.find(answer)
        if found is None and title:
            return answer if parse(answer).adrs else _with_section(answer, title, text)
        if found is None:
            return _with_block(answer, fence_of(self.name), text)
        start, end = found
        eol = "\r\n" if "\r\n" in answer else "\n"
        shown = text.strip("\n").replace("\r\n", "\n")
        if fence := self._fence(answer):
            indent = " " * fence.indent
            shown = "\n".join(indent + line if line else line for line in shown.split("\n"))
        if title and not answer[start:end].strip():
            shown = f"\n{shown}\n"
        shown = shown.replace("\n", eol)
        if start == end and fence and not answer[start:].startswith(("\n", "\r\n")):
            shown += eol
        after = answer[:start] + shown + answer[end:]
        return after if title or _outside(after) == _outside(answer) or not fence else answer

    def _lines(self, answer: str) -> tuple[int, int] | None:
        """Its lines in the answer, from 0, the end excluded."""
        out = parse(answer).out
        if fence := self._fence(answer):
            return fence.start + 1, fence.end - 1
        if lines := lines_of(self.name):
            return (lines[0] - 1, lines[1]) if 1 <= lines[0] <= lines[1] <= len(out.lines) else None
        if title := section_title(self.name):
            return _section(out, title, _marker_line(answer))
        if name := header_key(self.name):
            return _field(only_adr(answer), name)
        return None

    def _fence(self, answer: str) -> Fence | None:
        wanted = fence_of(self.name)
        if wanted is None:
            return None
        found = _fences(answer, wanted[0])
        return found[wanted[1] - 1] if 1 <= wanted[1] <= len(found) else None


def is_own(part: str, answer: str) -> bool:
    """Whether code can put a part into an answer that holds no ADR, or that is a block or lines of any answer."""
    if section_title(part):
        return not parse(answer).adrs
    if fence := fence_of(part):
        return bool(fence[0]) and fence[1] <= len(_fences(answer, fence[0])) + 1
    return Part(part).find(answer) is not None if lines_of(part) else False


class Splice:
    """An answer into which parts of a reply are put, one after the other."""

    def __init__(self, answer: str) -> None:
        self.answer = answer
        self.put: dict[str, str] = {}

    def take(self, part: str, text: str, after: str) -> None:
        """Take the answer after a part was put in; nothing is noted where that changed nothing."""
        if after != self.answer:
            self.answer, self.put[part] = after, text


def put_parts(splice: Splice, parts: Collection[str], sections: dict[str, str], reply: str) -> None:
    """Put those of the asked parts that a reply offers into the answer.

    Args:
        splice: the answer.
        parts: names of parts that were asked for.
        sections: bodies that the reply offers, by ``titles.key``.
        reply: the reply.
    """
    if not parts:
        return
    found = {**_offered_lines(splice.answer, parts, reply), **_offered_blocks(splice.answer, parts, reply)}
    found |= {part: body for part in parts if (title := section_title(part)) and (body := sections.get(key(title), ""))}
    for part, text in found.items():
        splice.take(part, text, Part(part).put(splice.answer, text))


def _offered_lines(answer: str, parts: Collection[str], reply: str) -> dict[str, str]:
    """The lines that a reply offers, the last ones first, so that numbers stay right."""
    ranges = sorted(((lines, part) for part in parts if (lines := lines_of(part))), reverse=True)
    if not ranges:
        return {}
    blocks = [_inside(reply, fence) for fence in _fences(reply, "") if language_of_fence(fence) in ("", "text")]
    if len(blocks) == len(ranges):
        return {part: text for (_, part), text in zip(ranges, reversed(blocks), strict=True)}
    (first, last), part = ranges[0]
    old = strip_marker(answer).rstrip().replace("\r\n", "\n").split("\n")
    new = strip_marker(reply).strip("\n").rstrip().replace("\r\n", "\n").split("\n")
    if len(ranges) > 1 or blocks:
        return {}
    after = max(len(old) - last, 0)
    again = len(new) >= first + after and new[: first - 1] == old[: first - 1] and new[len(new) - after :] == old[last:]
    if again and first <= last <= len(old):
        return {part: "\n".join(new[first - 1 : len(new) - after])}
    said = "\n\n".join(p for p in "\n".join(new).split("\n\n") if not is_remark(p) and not introduces(p)).strip("\n")
    fits = said.count("\n") <= last - first and has_content(said)
    was = "\n".join(old[first - 1 : last])
    alike = difflib.SequenceMatcher(None, was[:_LINE], said[:_LINE], autojunk=False).ratio() >= _ALIKE
    return {part: said} if fits and not is_talk(said, answer) and (alike or speech(said, answer).shared) else {}


def _offered_blocks(answer: str, parts: Collection[str], reply: str) -> dict[str, str]:
    """The blocks that a reply offers: as many of a language as were asked for, or as many as the answer has.

    A reply without a block of the language may have as many that name none, or be one JSON value.
    """
    found: dict[str, str] = {}
    asked = sorted((fence[0], fence[1], part) for part in parts if (fence := fence_of(part)))
    for language in dict.fromkeys(language for language, _, _ in asked):
        mine = [(number, part) for own, number, part in asked if own == language]
        texts = [_inside(reply, fence) for fence in _fences(reply, language)]
        if not texts:
            texts = [_inside(reply, fence) for fence in _fences(reply, "") if language_of_fence(fence) in ("", "text")]
        if not texts and language == "json" and is_json(strip_marker(reply)):
            texts = [strip_marker(reply).strip()]
        if len(texts) == len(mine):
            found |= {part: text for (_, part), text in zip(mine, texts, strict=True)}
        elif len(texts) == len(_fences(answer, language)):
            found |= {part: texts[number - 1] for number, part in mine}
    return found


def _fences(answer: str, language: str) -> list[Fence]:
    """The closed blocks of a language; of any for an empty one."""
    fences = (fence for fence in parse(answer).out.fences if fence.closed)
    return [fence for fence in fences if not language or language_of_fence(fence) == language]


def _inside(text: str, fence: Fence) -> str:
    lines = parse(text).out.lines[fence.start + 1 : fence.end - 1]
    return "\n".join(line[min(fence.indent, len(line) - len(line.lstrip(" "))) :] for line in lines)


def _outside(answer: str) -> list[tuple[str, bool]]:
    """The blocks of an answer: a text that ends its own block early would make others."""
    return [(fence.info, fence.closed) for fence in parse(answer).out.fences]


def _section(out: Outline, title: str, end: int) -> tuple[int, int] | None:
    for heading in out.headings:
        if heading.top and key(heading.title) == key(title):
            later = (other.line for other in out.headings if other.line > heading.line and other.level <= heading.level)
            return heading.line + 1, max(heading.line + 1, min(next(later, len(out.lines)), end))
    return None


def _marker_line(answer: str) -> int:
    """The line of the marker that the answer ends with; the number of lines without one."""
    kept = strip_marker(answer)
    return kept.rstrip("\n").count("\n") + 1 if kept != answer else answer.count("\n") + 1


def _field(adr: Adr | None, name: str) -> tuple[int, int] | None:
    if adr is None or not adr.header:
        return None
    block = header_lines.blocks(adr.yaml_text).get(name)
    if block is None:
        return None
    first = adr.first_line + adr.header[0]
    return first + block.start, first + block.end


def _with_section(answer: str, title: str, text: str) -> str:
    """The answer with a new section at its end, before its marker."""
    levels = [heading.level for heading in parse(answer).out.headings if heading.top and heading.level > 1]
    return _at_end(answer, f"{'#' * (levels[0] if levels else 2)} {title}\n\n{text.rstrip()}")


def _with_block(answer: str, fence: tuple[str, int] | None, text: str) -> str:
    """The answer with a block that it lacks: in the place of one like it that names no language, else at its end."""
    if fence is None or fence[1] != len(_fences(answer, fence[0])) + 1:
        return answer
    mark = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
    block = f"{mark}{fence[0]}\n{text.rstrip()}\n{mark}"
    plain = [
        one for one in _fences(answer, "") if not one.info and fence[0] == "json" and is_json(_inside(answer, one))
    ]
    if len(plain) != 1 or plain[0].indent:
        return _at_end(answer, block)
    starts = _starts(answer)
    eol = "\r\n" if "\r\n" in answer else "\n"
    start, end = starts[plain[0].start], starts[plain[0].end]
    return (
        answer[:start] + block.replace("\n", eol) + answer[start:end][len(answer[start:end].rstrip()) :] + answer[end:]
    )


def _at_end(answer: str, shown: str) -> str:
    """The answer with a text behind it, before its marker."""
    document = parse(answer)
    last = document.markers[-1] if document.markers else None
    at = last.start if last and not answer[last.end :].strip() else len(answer)
    before, eol = answer[:at], "\r\n" if "\r\n" in answer else "\n"
    shown = shown.replace("\r\n", "\n").replace("\n", eol)
    return f"{before}{blank_line(before, eol)}{shown}{eol}" + (eol if at < len(answer) else "") + answer[at:]


def _starts(answer: str) -> list[int]:
    """Where each line begins, and where the last one ends."""
    starts = [0]
    for line in answer.split("\n"):
        starts.append(min(starts[-1] + len(line) + 1, len(answer)))
    return starts
