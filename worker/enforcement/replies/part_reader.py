"""Extracts parts of an answer, such as sections, from an agent's reply, with or without ``<part id=…>`` tags.

A reply without tags may be one part or the whole answer.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

from api_client.contract.step_marker import find_markers
from worker.enforcement.documents import header_lines
from worker.enforcement.documents.content import has_content, is_json
from worker.enforcement.documents.document import parse_document
from worker.enforcement.documents.outline import Heading, may_hold_fences, parse_outline
from worker.enforcement.documents.part_names import (
    FILES,
    STEP_MARKER,
    YAML_HEADER,
    header_key,
    in_header,
    lines_range,
    parse_fence_part,
    section_title,
)
from worker.enforcement.documents.placeholders import omits_text
from worker.enforcement.documents.splice import closed_fences, only_adr, strip_last_anchors
from worker.enforcement.documents.step import strip_marker
from worker.enforcement.documents.titles import find_required_section, section_key
from worker.enforcement.replies.part_tags import ReplyText, cut_closing_tag, find_tagged_texts
from worker.enforcement.replies.refusals import is_refusal
from worker.enforcement.replies.tool_calls import contains_tool_call, is_bare_json

#: A title in bold, or glued to its ``#`` marks, at the beginning of a text.
_BOLD_TITLE = re.compile(r"\s*(\*\*|__)([^*_\n]{1,100}?)[ \t]*:?\1:?[ \t]*(?:\n|(?=\S))")
_GLUED = re.compile(r"\s*(#{1,6})(?=[^\s#])")
_HEADING = re.compile(r"#{1,6}(?=[ \t]|$)")
_FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})[ \t]*([^`\s]*)[^`\n]*$", re.MULTILINE)
_INFOS = frozenset(("", "markdown", "md", "yaml", "yml", "frontmatter", "text", "txt", "plain", "html"))
_RULE = re.compile(r"[ \t]*(?:-{3,}|\*{3,}|_{3,})[ \t]*")
_BLANK_LINES = re.compile(r"\A(?:[ \t]*\n)+")
_CODE = re.compile(r"^(`{3,}|~{3,})[^\n]*\n(.*?)(?:^\1[ \t]*$|\Z)", re.DOTALL | re.MULTILINE)
#: A last paragraph that may be a remark to the reader: short prose in which a person speaks, or about the reply.
_MAX_REMARK = 200
_SPEAKS = re.compile(
    r"\b(?:I|I['’]\w+|me|my|you|your|please|thanks?|ich|mir|mich|mein\w*|du|dir|dich|dein\w*|Ihnen|bitte|danke"
    r"|je (?:vous|vais|suis|peux|ne)|vous"
    r"|unchanged|untouched|unverändert|inchangée?s?|(?:wie|as) (?:er|es|sie|it|they) (?:war|was|is|were)\w*|stays?"
    r"|feel free|hope|hoffe|espero|bescheid)\b"
    r"|[!?][^\w\n]*$|\A\W{0,3}[\[(].*[\])]\W*\Z|\A\W{0,3}P\.? ?S\.",
    re.IGNORECASE,
)
_ABOUT_REPLY = re.compile(
    r"\b(?:sections?|abschnitte?|parts?|answer|antwort|document|dokument|adr(?!-)|rest\w*|header|else|other\w*|sonst|andere|alles"
    r"|changes?|changed|modified|unchanged|untouched|identical|identisch|everything|weiteres?|änder\w*|unverändert|inchangée?|igual|done|fertig|all|mehr|hope\w*"
    r"|this|passt)\b",
    re.IGNORECASE,
)
_REFERENCE = re.compile(r"[\d`]|\]\(")
#: A first heading ends within so many characters. Of a section with more copies than this, the last ones are read.
_FIRST_CHARS, _MOST_COPIES = 1000, 20
#: A section that begins with more placeholders than this is none: to recognise one takes longer than to read its line.
_MOST_PLACEHOLDERS = 2_000
#: A line of the feedback of this length is repeated by no section.
_ECHO = 40
_PROSE = re.compile(r"(?![-+*][ \t]|[-+#|`]|\d{1,3}[.)]\s)\S")
_WORD = re.compile(r"[^\W\d_]{5,}")


class FencedText(NamedTuple):
    """The content of a code fence in a Markdown text. ``surrounded`` is True if the text has more than the fence."""

    text: str
    surrounded: bool


def read_step_name(reply: str) -> str | None:
    """Return the name in the last valid marker ``<!-- STEP: name -->`` of an agent's reply, or None.

    Markers in code count only if all of them name the same step and no marker is outside code.
    """
    outside = next((m.step for m in reversed(parse_document(reply).markers) if m.step), None)
    steps = {marker.step for marker in find_markers(reply) if marker.step}
    return outside or (steps.pop() if len(steps) == 1 else None)


def extract_parts(reply: str, part_names: Sequence[str], earlier_answer: str, prompt: str = "") -> dict[str, str]:
    """Return the requested parts (sections, for example) that an agent's reply contains, as a dict from name to text.

    ``part_names`` are the parts that ``prompt`` asks for, because ``earlier_answer`` lacks them. The step marker is not
    extracted; see ``read_step_name``.
    """
    if set(part_names) <= {STEP_MARKER}:
        return {}
    text = reply.replace("\r\n", "\n").removeprefix("\ufeff")
    tagged_texts = find_tagged_texts(text, prompt)
    reader = _PartReader(earlier_answer, part_names, prompt)
    if tagged_texts:
        return reader.read_tagged_parts(tagged_texts)
    untagged = reader.find_untagged_text(text)
    found = {part: reader.read_part(part, untagged, own_tag=False) for part in part_names} if untagged.text else {}
    found |= _read_lines(part_names, text) | _read_blocks(earlier_answer, part_names, text)
    return {part: value for part, value in found.items() if value}


class _PartReader:
    def __init__(self, answer: str, part_names: Sequence[str], prompt: str) -> None:
        self.answer, self.parts, self.feedback = answer, part_names, prompt
        self.titles = {section_key(title) for part in part_names if (title := section_title(part))}

    @cached_property
    def known(self) -> set[str]:
        """The titles of sections that may follow a requested one: requested ones, and those of the earlier answer."""
        document = parse_document(self.answer)
        present = [one.title for adr in document.adrs for one in adr.sections]
        present += [heading.title for heading in document.out.headings if heading.top and heading.level == 2]
        return self.titles | set(map(section_key, present))

    def read_tagged_parts(self, tagged_texts: Mapping[int, ReplyText]) -> dict[str, str]:
        """Return the text of each requested part, by part name.

        The first part is expected in tag 1, the second in tag 2; a part that is not there is searched in all tags.
        """
        found: dict[str, str] = {}
        for number, part in enumerate(self.parts, 1):
            own = tagged_texts.get(number)
            found[part] = self.read_part(part, own, own_tag=True) if own else ""
        lacking = [part for part in self.parts if not found[part] and (section_title(part) or in_header(part))]
        others = (
            (part, tagged)
            for number, tagged in tagged_texts.items()
            for part in (lacking if number <= len(self.parts) else ())
            if part not in self.parts[number - 1 : number]
        )
        for part, tagged in others:
            found[part] = found[part] or self.read_part(part, tagged, own_tag=False)
        return {part: text for part, text in found.items() if text}

    def find_untagged_text(self, text: str) -> ReplyText:
        """Return the text of a reply that has no ``<part>`` tags, if the text begins with a requested part.

        Otherwise, the text is empty. If the only code block begins with such a part, just this block counts.
        """
        body = cut_closing_tag(strip_marker(text).strip("\n"))
        fence = find_single_fence(body.text)
        if fence and self._begins_with_part(fence.text):
            return ReplyText(fence.text, closed=True)
        return body if self._begins_with_part(body.text) else ReplyText("", closed=False)

    def _begins_with_part(self, text: str) -> bool:
        text = self._as_heading(_BLANK_LINES.sub("", text))
        first = text.partition("\n")[0]
        if any(map(in_header, self.parts)):
            keys = {*header_lines.FIELDS, *header_lines.LISTS, FILES, *filter(None, map(header_key, self.parts))}
            if first.rstrip() == "---" or keys & set(header_lines.find_entries(first)):
                return True
        headings = parse_outline(text[:_FIRST_CHARS]).headings
        if headings and headings[0].line == 0 and section_key(headings[0].title) in self.titles:
            return True
        begins_alike = any(map(str.isalnum, first)) and first == self.answer.lstrip().partition("\n")[0].rstrip("\r")
        return begins_alike or any(adr.has_title or adr.header for adr in parse_document(text).adrs)

    def _as_heading(self, text: str) -> str:
        bold = _BOLD_TITLE.match(text)
        if bold and section_key(bold[2]) in self.titles:
            return f"### {bold[2]}\n\n{text[bold.end() :]}"
        glued = _GLUED.match(text)
        return f"{glued[1]} {text[glued.end() :]}" if glued else text

    def read_part(self, part_name: str, reply_text: ReplyText, *, own_tag: bool) -> str:
        """Return the part with this name from a text, or an empty string if the text does not contain it.

        ``own_tag`` says that the text stood between the tags of this part.
        """
        text = reply_text.text
        if title := section_title(part_name):
            return self._read_section(_BLANK_LINES.sub("", text), section_key(title), end_known=reply_text.closed)
        if part_name == YAML_HEADER:
            header = _read_header(text)
            return header if len(set(header_lines.find_entries(header)) & {*header_lines.FIELDS}) > 1 else ""
        if name := header_key(part_name):
            return _read_key(_read_header(text), name)
        if not own_tag or part_name == STEP_MARKER:
            return ""
        fence = find_single_fence(text)
        inside = fence.text if fence else text.strip("\n").rstrip()
        if wanted := parse_fence_part(part_name):
            own = closed_fences(text, wanted[0])
            return parse_document(text).out.inner_text(own[0]) if own else inside
        return inside

    def _read_section(self, text: str, name: str, *, end_known: bool) -> str:
        fence = find_single_fence(text)
        if fence and self._begins_with_part(fence.text):
            text = fence.text
        text = self._as_heading(_BLANK_LINES.sub("", text))
        out = parse_document(text).out
        tops = [heading for heading in out.headings if heading.top]
        own = [heading for heading in tops if section_key(heading.title) == name]
        level = min((heading.level for heading in own), default=0)
        for heading in [heading for heading in own if heading.level == level][: -1 - _MOST_COPIES : -1]:
            start = heading.line + _heading_length(heading, out.lines)
            if body := self._read_body(out.lines, start, heading.level, tops, name, end_known=end_known):
                return body
        return ""

    def _read_body(
        self, lines: Sequence[str], start: int, level: int, tops: Sequence[Heading], name: str, *, end_known: bool
    ) -> str:
        end = next((h.line for h in tops if h.line >= start and self._ends_section(h, level, name)), len(lines))
        body = _BLANK_LINES.sub("", "\n".join(lines[start:end]).rstrip())
        markers = parse_document(body).markers
        body = strip_last_anchors(body[: markers[0].start] if markers else body)
        fence = find_single_fence(body)
        if fence and not fence.surrounded and body.lstrip("`~ ").startswith(("markdown", "md")):
            body = _BLANK_LINES.sub("", fence.text.rstrip())
        prose = _CODE.sub("", body)
        if not _is_filled(body) or omits_text(body) or is_refusal(body) or is_bare_json(prose):
            return ""
        code = [] if _is_filled(prose) else [block[2] for block in _CODE.finditer(body)]
        if contains_tool_call(body if code else prose, code):
            return ""
        if any(len(line) > _ECHO and line.strip("> *") in self.feedback for line in prose.split("\n")):
            return ""
        if not end_known and end == len(lines) and may_end_in_remark(body, self.answer):
            return ""
        return _demote_headings(body, level)

    def _ends_section(self, heading: Heading, level: int, name: str) -> bool:
        key = section_key(heading.title)
        required = find_required_section(heading.title) is not None and bool(parse_document(self.answer).adrs)
        known = key != name and (required or key in self.known)
        return heading.level <= min(level, 2) or (known and heading.level <= max(level, 2))


def _is_filled(text: str) -> bool:
    return has_content(text, max_placeholders=_MOST_PLACEHOLDERS)


def may_end_in_remark(text: str, answer: str) -> bool:
    """Return True if the last paragraph of a text may be a remark to the user, such as "Let me know if you need more".

    A short last paragraph may be a remark if it is below a horizontal rule, if it speaks to somebody or has several
    words about replies, or if it has no number, code or link and shares no word with ``answer`` and the other text.
    """
    before, _, last = text.rpartition("\n\n")
    above, (rule, _, below) = before.rstrip().rpartition("\n")[2], last.strip().partition("\n")
    ruled = bool(_RULE.fullmatch(rule) or _RULE.fullmatch(above))
    last = below if _RULE.fullmatch(rule) else last.strip()
    if not above or _HEADING.match(above) or "\n" in last or len(last) > _MAX_REMARK or not _PROSE.match(last):
        return False
    if ruled or _SPEAKS.search(last):
        return True
    fences = parse_outline(text).fences if may_hold_fences(text) else []
    inside = bool(fences) and fences[-1].end > text.count("\n")
    said, about_reply = _ABOUT_REPLY.subn(" ", last)
    if inside or (not about_reply and _REFERENCE.search(last)):
        return False
    if about_reply > 2:
        return True
    about = {word.casefold() for word in _WORD.findall(said)}
    return about.isdisjoint(map(str.casefold, _WORD.findall(f"{before}\n{answer}")))


def find_single_fence(text: str, *, allow_json: bool = False) -> FencedText | None:
    """Return the code block of a Markdown text that has exactly one, or None.

    A block in another language than Markdown or plain text does not count; ``allow_json`` accepts JSON as well.
    """
    marks = _FENCE.finditer(text)
    first = next(marks, None)
    if first is None or first[2].lower() not in (_INFOS | {"json"} if allow_json else _INFOS):
        return None
    depth = 1
    for mark in marks:
        if mark[1].startswith(first[1]):
            depth += 1 if mark[2] else -1
        if not depth and next(marks, None):
            return None
        if not depth:
            around = text[: first.start()].strip() or text[mark.end() :].strip()
            return FencedText(text[first.end() + 1 : mark.start() - 1], bool(around))
    return None


def _heading_length(heading: Heading, lines: Sequence[str]) -> int:
    underlined = not lines[heading.line].lstrip().startswith("#")
    return 2 + heading.title.count("\n") if underlined else 1


def _demote_headings(body: str, level: int) -> str:
    if level >= 2:
        return body
    lines = body.split("\n")
    for heading in parse_outline(body).headings:
        if heading.level <= 2 and _HEADING.match(lines[heading.line]):
            lines[heading.line] = "#" * (3 - heading.level) + lines[heading.line]
    return "\n".join(lines)


def _read_header(text: str) -> str:
    adr = only_adr(text)
    if adr and adr.header:
        return adr.yaml_text.rstrip("\n")
    fence = find_single_fence(text)
    lines = (fence.text if fence else text).strip("\n").split("\n")
    opened = lines[0].rstrip() == "---"
    lines = lines[opened:]
    ends = (
        number
        for number, line in enumerate(lines)
        if line.rstrip() in ("---", "...") or line.startswith(("# ADR-", "##")) or not (opened or line.strip())
    )
    return strip_marker("\n".join(lines[: next(ends, len(lines))]).rstrip())


def _read_key(header: str, name: str) -> str:
    if found := header_lines.key_lines(header, name):
        return found
    keys = set(header_lines.find_entries(header))
    if name == FILES and keys and keys <= header_lines.LISTS and header_lines.parse_mapping(header):
        return "files:\n" + "\n".join(f"  {line}" for line in header.split("\n"))
    return ""


def _read_lines(parts: Collection[str], reply: str) -> dict[str, str]:
    ranges = sorted((lines, part) for part in parts if (lines := lines_range(part)))
    blocks = _plain_blocks(reply) if ranges else []
    return dict(zip([part for _, part in ranges], blocks, strict=True)) if len(blocks) == len(ranges) else {}


def _read_blocks(answer: str, parts: Collection[str], reply: str) -> dict[str, str]:
    found: dict[str, str] = {}
    asked = sorted((fence[0], fence[1], part) for part in parts if (fence := parse_fence_part(part)))
    for language in dict.fromkeys(language for language, _, _ in asked):
        mine = [(number, part) for own, number, part in asked if own == language]
        texts = [parse_document(reply).out.inner_text(fence) for fence in closed_fences(reply, language)]
        texts = texts or _plain_blocks(reply)
        if not texts and language == "json" and is_json(strip_marker(reply)):
            texts = [strip_marker(reply).strip()]
        if len(texts) == len(mine):
            found |= {part: text for (_, part), text in zip(mine, texts, strict=True)}
        elif len(texts) == len(closed_fences(answer, language)):
            found |= {part: texts[number - 1] for number, part in mine if number <= len(texts)}
    return found


def _plain_blocks(reply: str) -> list[str]:
    plain = (fence for fence in closed_fences(reply, "") if fence.language in ("", "text"))
    return [parse_document(reply).out.inner_text(fence) for fence in plain]
