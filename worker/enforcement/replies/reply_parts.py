"""Parts in an agent's reply to feedback: a step, header keys, sections.

Parts may stand alone, in fences, or in a whole answer. A section's heading may have another level, mark-up or name.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

from api_client.contract.step_marker import find_markers
from worker.enforcement.documents import header_lines
from worker.enforcement.documents.content import has_content, is_json
from worker.enforcement.documents.document import parse_document
from worker.enforcement.documents.outline import lines_in_spans, may_hold_fences, parse_outline
from worker.enforcement.documents.part import (
    CRITERIA,
    FILES,
    STEP_MARKER,
    YAML_HEADER,
    header_key,
    in_header,
    lines_range,
    parse_fence_part,
    section_title,
)
from worker.enforcement.documents.splice import closed_fences
from worker.enforcement.documents.step import strip_marker
from worker.enforcement.documents.titles import find_required_section, section_key
from worker.enforcement.replies.frames import CUT, find_wrappers, has_text_around, remove_frames
from worker.enforcement.replies.vocabulary import (
    announces_section,
    is_introduction,
    is_remark,
    is_section,
    is_talk,
    profile_vocabulary,
)

_MAX_HEADER = 2_000
_FIELD = re.compile(r"(?:[-*+]\s{1,4})?[`*]{0,2}(adr_id|title|status)[`*]{0,2}:[`*]{0,2}\s{1,10}(\S.{0,300}?)[`]{0,2}$")
_BOLD_TITLE = re.compile(r"\*\*([^*]{1,100})\*\*\s{0,5}:?$|__([^_]{1,100})__\s{0,5}:?$")
_HEADING = re.compile(r"(#{1,6})(?=[ \t]|$)")
#: A title in bold before its section's text.
_LABEL = re.compile(r"(?:[-*+]\s{1,4})?(?:\*\*|__)([^*_]{1,60})(?:\*\*|__):?\s{1,4}(?=\S)")
_RULES = ("---", "***", "___")
_BLANK_LINES = re.compile(r"\A(?:[ \t]*\n)+")
_MAX_REMARKS = 8
_MAX_BODY = 20_000
#: A paragraph of this length that is in the answer already was repeated.
_MIN_REPEATED = 12
#: Least similarity of a line and its replacement, and the characters compared.
_ALIKE, _LINE = 0.4, 400


@dataclass(slots=True)
class ReplyParts:
    """Collects the parts that the agent was asked for, as found in its reply.

    Attributes:
        header: YAML of a whole header, without ``---`` lines.
        keys: lines of single header keys, by key.
        sections: bodies without headings, by ``section_key``.
    """

    step: str | None = None
    header: str = ""
    keys: dict[str, str] = field(default_factory=dict)
    sections: dict[str, str] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.step or self.header or self.keys or self.sections)

    def add_parts(self, other: ReplyParts) -> None:
        """Add the parts found in another piece of the reply, which replace parts of the same name."""
        self.step = other.step or self.step
        self.header = _choose_header(other.header, self.header)
        self.keys |= other.keys
        self.sections |= other.sections


def find_reply_parts(
    text: str, asked: Collection[str], answer: str = "", again: Collection[str] = (), feedback: str = ""
) -> ReplyParts:
    """Return the requested parts of an answer that the agent's reply contains.

    ``again`` are requested parts that once were good; these need a heading. ``feedback`` is the prompt that led to the
    reply.
    """
    titles = [title for part in asked if (title := section_title(part))]
    text = remove_frames(text.replace("\r\n", "\n").removeprefix("\ufeff"), titles)
    fenced, rest = _read_fences(text, asked, answer)
    found = _read_parts(rest, asked, answer)
    found.add_parts(fenced)
    if whole := _find_titled_adr(text):
        found.add_parts(_read_parts(whole, asked, answer))
    if STEP_MARKER in asked and not found.step:
        steps = {marker.step for marker in find_markers(text) if marker.step}  # also in code
        found.step = steps.pop() if len(steps) == 1 else None
    named = {section_key(title): title for title in titles}
    found.sections = {
        name: body
        for name, body in found.sections.items()
        if is_section(body, answer, named[name], headed=True, feedback=feedback)
    }
    if len(titles) == 1 and not again and not found.sections:
        body, labelled = _find_unheaded_body(text, rest, answer, titles[0])
        if _may_be_section(body, answer, titles[0]) and is_section(
            body, answer, titles[0], headed=labelled, feedback=feedback
        ):
            found.sections[section_key(titles[0])] = body
    return found


def _find_titled_adr(text: str) -> str:
    adrs = [adr for adr in parse_document(text).adrs if adr.has_title]
    return "\n".join(adrs[0].out.lines[adrs[0].start : adrs[0].end]) if len(adrs) == 1 else ""


def _read_fences(text: str, asked: Collection[str], answer: str) -> tuple[ReplyParts, str]:
    """Return the requested parts found in code fences, and the reply without these fences."""
    offer = ReplyParts()
    if not may_hold_fences(text):
        return offer, text
    lines = text.split("\n")
    for fence in find_wrappers(lines):
        found = _read_parts(fence.text, asked, answer, fenced=True)
        if fence.info in ("yaml", "yml", "frontmatter", ""):  # a bare fence may be YAML
            found.add_parts(ReplyParts(None, *_read_yaml(fence.text, asked)))
        if found:
            offer.add_parts(found)
            lines[fence.start : fence.end] = [CUT] + [""] * (fence.end - fence.start - 1)
    return offer, "\n".join(lines)


def _read_parts(text: str, asked: Collection[str], answer: str, *, fenced: bool = False) -> ReplyParts:
    """Return the requested parts found in a text, whose code fences are ignored."""
    offer = ReplyParts()
    if STEP_MARKER in asked:
        offer.step = next((m.step for m in reversed(parse_document(text).markers) if m.step), None)
    if any(in_header(part) for part in asked):
        for yaml_text in _yaml_texts(text):
            offer.add_parts(ReplyParts(None, *_read_yaml(yaml_text, asked)))
    offer.sections = _read_sections(text, asked, answer, fenced=fenced)
    return offer


def _read_sections(text: str, asked: Collection[str], answer: str, *, fenced: bool) -> dict[str, str]:
    """Return the text of each requested section by its key. If a section occurs twice, the last one counts."""
    wanted = {section_key(title) for part in asked if (title := section_title(part))}
    if not wanted:
        return {}
    lines = text.split("\n")
    heads = list(_find_headings(text, lines))
    found: dict[str, str] = {}
    for at, (line, level, title, length) in enumerate(heads):
        name = section_key(title)
        if name not in wanted:
            continue
        end = len(lines)
        for place in range(at + 1, len(heads)):
            following, other, words, _ = heads[place]
            if other <= level or other <= 2 or section_key(words) in wanted or find_required_section(words):
                end = following
                break
        body = _trim_body(lines[line + length : end], answer, bounded=end < len(lines), fenced=fenced)
        body = _demote_headings(body, level)
        if has_content(body):
            found[name] = body
    return found


def _find_headings(text: str, lines: list[str]) -> Iterator[tuple[int, int, str, int]]:
    """Yield line, level, title and number of lines of each heading, including required titles written in bold."""
    out = parse_outline(text)
    rows = []
    for heading in out.headings:
        if heading.top:
            underlined = not lines[heading.line].lstrip().startswith("#")
            length = 2 + heading.title.count("\n") if underlined else 1
            rows.append((heading.line, heading.level, heading.title, length))
    starts = {start for start, _ in out.paragraphs}
    for number in starts:
        if bold := _BOLD_TITLE.match(lines[number].strip()):
            title = bold[1] or bold[2]
            if find_required_section(title):
                rows.append((number, 3, title, 1))
    return iter(sorted(rows))


def _trim_body(lines: Sequence[str], answer: str, *, bounded: bool, fenced: bool) -> str:
    cut = next((n for n, line in enumerate(lines) if line == CUT), None)
    if cut is not None and has_content("\n".join(lines[:cut])):
        lines, bounded = lines[:cut], True
    text = _before_marker(_strip_blank_lines("\n".join(line for line in lines if line != CUT)))
    bounded = bounded or len(text) < len("\n".join(lines).strip())
    for _ in range(_MAX_REMARKS):
        text = text.rstrip()
        last = text.rpartition("\n\n")[2]
        spoken = not fenced and (is_remark(last, answer) or (bounded and is_introduction(last)))
        if last.strip() in _RULES or (spoken and not _ends_in_fence(text, last)):
            text = text[: -len(last)]
        else:
            break
    return _unwrap_fence(_strip_blank_lines(text))


def _before_marker(text: str) -> str:
    markers = parse_document(text).markers
    return text[: markers[0].start].rstrip() if markers else text


def _ends_in_fence(text: str, last: str) -> bool:
    fences = parse_outline(text).fences
    return bool(fences) and fences[-1].end > text.count("\n", 0, len(text) - len(last))


def _unwrap_fence(body: str) -> str:
    lines = body.split("\n")
    fences = list(find_wrappers(lines))
    if len(fences) != 1 or not fences[0].is_document:
        return body
    return body if has_text_around(lines, fences[0].start, fences[0].end) else _strip_blank_lines(fences[0].text)


def _demote_headings(body: str, level: int) -> str:
    if level >= 2:
        return body
    out = parse_outline(body)
    lines = body.split("\n")
    for heading in out.headings:
        if heading.level <= 2 and _HEADING.match(lines[heading.line]):
            lines[heading.line] = "#" * (3 - heading.level) + lines[heading.line]
    return "\n".join(lines)


def _find_unheaded_body(text: str, rest: str, answer: str, title: str) -> tuple[str, bool]:
    """Return the text of the requested section from a reply without headings.

    The second result is True if a bold label names the section.
    """
    if any(heading.level <= 2 for heading in parse_outline(text).headings):
        return "", False
    body = strip_marker(_strip_blank_lines(rest.replace(CUT, "")))
    lines = body.split("\n")
    fences = [fence for fence in find_wrappers(lines) if fence.is_document or not fence.info]
    if len(fences) == 1 and has_content(fences[0].text) and not has_text_around(lines, fences[0].start, fences[0].end):
        body = strip_marker(_strip_blank_lines(fences[0].text))
    if (label := _LABEL.match(body)) and section_key(label[1]) == section_key(title):
        return body[label.end() :], True
    paragraphs = body.split("\n\n")
    while paragraphs and (is_remark(paragraphs[0], answer) or announces_section(paragraphs[0], answer, title)):
        paragraphs = paragraphs[1:]
    while paragraphs and (is_remark(paragraphs[-1], answer) or paragraphs[-1].strip() in _RULES):
        paragraphs = paragraphs[:-1]
    body = _strip_blank_lines("\n\n".join(paragraphs))
    label = _LABEL.match(body)
    return (body[label.end() :], True) if label and section_key(label[1]) == section_key(title) else (body, False)


def _may_be_section(body: str, answer: str, title: str) -> bool:
    """Return True if a text without a heading looks like a section and is not yet part of the answer."""
    paragraphs = body.split("\n\n")
    if not body or len(body) > _MAX_BODY or body.startswith("---") or header_lines.find_entries(paragraphs[0]):
        return False
    if any(len(part.strip()) >= _MIN_REPEATED and part.strip() in answer for part in paragraphs):
        return False
    return find_required_section(title) != CRITERIA or any(_has_list_item(part) for part in paragraphs)


def _strip_blank_lines(text: str) -> str:
    return _BLANK_LINES.sub("", text.rstrip())


def _has_list_item(paragraph: str) -> bool:
    return any(re.match(r"\s{0,8}(?:[-*+]|\d{1,3}[.)])\s", line) for line in paragraph.split("\n"))


def _yaml_texts(text: str) -> list[str]:
    """Return the pieces of a text that may be a YAML header or lines of one."""
    lines = text.split("\n")
    coded = lines_in_spans(parse_outline(text).fenced)
    between: list[str] = []
    bare: list[str] = []
    number = 0
    while number < len(lines):
        line = lines[number]
        start, number = number, number + 1
        if start in coded:
            continue
        if line.rstrip() == "---":
            end = next((n for n in range(number, min(len(lines), start + _MAX_HEADER)) if _is_header_rule(lines[n])), 0)
            if end and header_lines.find_entries("\n".join(lines[number:end])):
                between.append("\n".join(lines[number:end]))
                number = end + 1
        elif header_lines.find_entries(line) or _FIELD.match(line.strip()):
            while number < len(lines) and lines[number].strip() and not lines[number].startswith(("---", "#", "`")):
                number += 1
            bare.append("\n".join(lines[start:number]))
    return [*bare, *between]


def _read_yaml(yaml_text: str, asked: Collection[str]) -> tuple[str, dict[str, str]]:
    lines = yaml_text.strip("\n").split("\n")
    lines = lines[1:] if _is_header_rule(lines[0]) else lines
    ends = (n for n, line in enumerate(lines) if line.rstrip() in ("---", "...") or line.startswith("# ADR-"))
    lines = lines[: next(ends, len(lines))]
    text = strip_marker("\n".join(lines).rstrip())
    text = text if header_lines.find_entries(text) else _listed_fields(lines)
    whole = YAML_HEADER in asked and len(set(header_lines.find_entries(text)) & {*header_lines.FIELDS}) > 1
    offered = {name: _find_key_lines(text, name) for part in asked if (name := header_key(part))}
    return text if whole else "", {name: value for name, value in offered.items() if value}


def _choose_header(new: str, old: str) -> str:
    """Return the better of two YAML headers, or the newer one if both are equally good."""
    if not new or not old:
        return new or old
    return max((old, new), key=_rate_header) if _rate_header(new) != _rate_header(old) else new or old


def _find_key_lines(text: str, name: str) -> str:
    """Return the lines of one header key in a reply, or an empty string if the key is missing.

    The key may be in a list item, and the lists of files may lack the key ``files:`` above them.
    """
    if found := header_lines.key_lines(text, name):
        return found
    keys = set(header_lines.find_entries(text))
    if name == FILES and keys and keys <= header_lines.LISTS and header_lines.parse_mapping(text):
        return "files:\n" + "\n".join(f"  {line}" for line in text.split("\n"))
    matches = (_FIELD.match(line.strip()) for line in text.split("\n"))
    field = next((one for one in matches if one and one[1] == name), None)
    return header_lines.key_lines(f"{name}: {field[2]}", name) if field else ""


def _listed_fields(lines: Sequence[str]) -> str:
    found = [one for line in lines if (one := _FIELD.match(line.strip()))]
    text = "\n".join(f"{one[1]}: {one[2]}" for one in found)
    return text if header_lines.parse_mapping(text) else ""


def _is_header_rule(line: str) -> bool:
    return line.rstrip() == "---"


def _rate_header(header: str) -> tuple[bool, int]:
    return header_lines.parse_mapping(header) is not None, len(
        set(header_lines.find_entries(header)) & {*header_lines.FIELDS}
    )


def find_own_parts(answer: str, parts: Collection[str], reply: str) -> dict[str, str]:
    """Return the lines and code blocks that a reply has for the requested parts, by part name."""
    return {**_find_lines(answer, parts, reply), **_find_blocks(answer, parts, reply)}


def _find_lines(answer: str, parts: Collection[str], reply: str) -> dict[str, str]:
    ranges = sorted(((lines, part) for part in parts if (lines := lines_range(part))), reverse=True)
    if not ranges:
        return {}
    blocks = _plain_blocks(reply)
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
    said = "\n\n".join(
        p for p in "\n".join(new).split("\n\n") if not is_remark(p, answer) and not is_introduction(p)
    ).strip("\n")
    fits = said.count("\n") <= last - first and has_content(said)
    was = "\n".join(old[first - 1 : last])
    alike = difflib.SequenceMatcher(None, was[:_LINE], said[:_LINE], autojunk=False).ratio() >= _ALIKE
    return (
        {part: said}
        if fits and not is_talk(said, answer) and (alike or profile_vocabulary(said, answer).shared)
        else {}
    )


def _find_blocks(answer: str, parts: Collection[str], reply: str) -> dict[str, str]:
    found: dict[str, str] = {}
    asked = sorted((fence[0], fence[1], part) for part in parts if (fence := parse_fence_part(part)))
    for language in dict.fromkeys(language for language, _, _ in asked):
        mine = [(number, part) for own, number, part in asked if own == language]
        texts = [parse_document(reply).out.inner_text(fence) for fence in closed_fences(reply, language)]
        if not texts:
            texts = _plain_blocks(reply)
        if not texts and language == "json" and is_json(strip_marker(reply)):
            texts = [strip_marker(reply).strip()]
        if len(texts) == len(mine):
            found |= {part: text for (_, part), text in zip(mine, texts, strict=True)}
        elif len(texts) == len(closed_fences(answer, language)):
            found |= {part: texts[number - 1] for number, part in mine if number <= len(texts)}
    return found


def _plain_blocks(reply: str) -> list[str]:
    return [
        parse_document(reply).out.inner_text(fence)
        for fence in closed_fences(reply, "")
        if fence.language in ("", "text")
    ]
