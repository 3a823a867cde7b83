"""Reads the requested parts of an answer in an agent's reply, with or without ``<part id=…>`` tags around them.

A part is a replaceable piece of an answer, such as a section. A frame is the pair of tags ``<part id=…>`` and
``</part>`` that feedback asks the agent to put around each part. A reply without frames may be one part or the whole
answer.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property

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
from worker.enforcement.documents.splice import closed_fences, only_adr
from worker.enforcement.documents.step import strip_marker
from worker.enforcement.documents.titles import find_required_section, section_key
from worker.enforcement.replies.part_frames import FramedText, cut_last_tag, find_framed_texts
from worker.enforcement.replies.refusals import is_refusal

#: A title in bold, or glued to its ``#`` marks, at the beginning of a text.
_BOLD_TITLE = re.compile(r"\s*(\*\*|__)([^*_\n]{1,100}?)[ \t]*:?\1:?[ \t]*(?:\n|(?=\S))")
_GLUED = re.compile(r"\s*(#{1,6})(?=[^\s#])")
_HEADING = re.compile(r"#{1,6}(?=[ \t]|$)")
_FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})[ \t]*([^`\s]*)[^`\n]*$", re.MULTILINE)
_INFOS = frozenset(("", "markdown", "md", "yaml", "yml", "frontmatter", "text", "txt", "plain", "html"))
_RULE = re.compile(r"[ \t]*(?:-{3,}|\*{3,}|_{3,})[ \t]*")
_BLANK_LINES = re.compile(r"\A(?:[ \t]*\n)+")
#: Markup of tool calls and their results, which some agents print instead of an answer.
_TOOL_CALL = re.compile(
    r"^</?(?:\w+:)?(?:[a-z]+_\w+|tools?|invoke|function|parameter|observation|bash|think(?:ing)?|system-\w+)\b[^<>\n]{0,200}>"
    r"|^<[|｜][^<>\n]{1,60}[|｜]>|^\[TOOL_CALLS\]|^[⏺●]?\s?\w{1,20}\([^()\n]{0,200}\)\n\s+⎿|^✿\w+✿|^`{3,}tool_"
    r"|^Action(?: Input)?:|^\**Tool \w+:|^Bash\(|^to=functions\.|^\*\*\* Begin Patch"
    r"|^\{\"(?:name|type)\": ?\"\w+\",[^\n]{0,4000}\"(?:arguments|parameters|input)\": ?\{",
    re.MULTILINE,
)
_CODE = re.compile(r"^(`{3,}|~{3,})[^\n]*\n.*?(?:^\1[ \t]*$|\Z)", re.DOTALL | re.MULTILINE)
#: A last paragraph that may be a remark to the reader: short prose in which a person speaks, or about the reply.
_MAX_REMARK = 200
_SPEAKS = re.compile(
    r"\b(?:I|I['’]\w+|me|my|you|your|please|thanks?|ich|mir|mich|mein\w*|du|dir|dich|dein\w*|Ihnen|bitte|danke"
    r"|je (?:vous|vais|suis|peux|ne)|vous"
    r"|unchanged|untouched|unverändert|inchangée?s?|(?:wie|as) (?:er|es|sie|it|they) (?:war|was|is|were)\w*|stays?"
    r"|feel free|hope|hoffe|espero|bescheid)\b"
    r"|[!?][^\w\n]*$|\A\W{0,3}[\[(].*[\])]\W*\Z",
    re.IGNORECASE,
)
_ABOUT_REPLY = re.compile(
    r"\b(?:sections?|abschnitte?|parts?|answer|antwort|document|dokument|adr(?!-)|rest\w*|header|else|other\w*|sonst|andere|alles"
    r"|changes?|changed|modified|unchanged|untouched|änder\w*|unverändert|inchangée?|igual|done|fertig|all|mehr|hope\w*"
    r"|this|passt)\b",
    re.IGNORECASE,
)
_REFERENCE = re.compile(r"[\d`]|\]\(")
#: A first heading ends within so many characters. Of a section with more copies than this, the last ones are read.
_FIRST_CHARS, _MOST_COPIES = 1000, 20
#: A line of the feedback of this length is repeated by no section.
_ECHO = 40
_PROSE = re.compile(r"(?![-+*>#|`]|\d{1,3}[.)]\s)\S")
_WORD = re.compile(r"[^\W\d_]{5,}")


def read_step(reply: str) -> str | None:
    """Return the step name in a reply's last valid ``<!-- STEP: … -->`` marker, or None if there is none.

    Markers in code count only if all of them name the same step and no marker is outside code.
    """
    outside = next((m.step for m in reversed(parse_document(reply).markers) if m.step), None)
    steps = {marker.step for marker in find_markers(reply) if marker.step}
    return outside or (steps.pop() if len(steps) == 1 else None)


def read_parts(reply: str, parts: Sequence[str], answer: str, feedback: str = "") -> dict[str, str]:
    """Return the parts of an answer that a reply contains, by part name. ``feedback`` is the prompt for the reply.

    A part is a piece of an answer, such as a section. ``parts`` names the parts that ``feedback`` asks for, and
    ``answer`` is the rejected answer that lacks them.
    """
    text = reply.replace("\r\n", "\n").removeprefix("\ufeff")
    frames = find_framed_texts(text, feedback)
    reader = _PartReader(answer, parts, feedback)
    if frames:
        return reader.read_frames(frames)
    bare, end_known = reader.find_bare_text(text)
    found = {part: reader.read_part(part, bare, own_frame=False, end_known=end_known) for part in parts} if bare else {}
    found |= _read_lines(parts, text) | _read_blocks(answer, parts, text)
    return {part: value for part, value in found.items() if value}


class _PartReader:
    def __init__(self, answer: str, parts: Sequence[str], feedback: str) -> None:
        self.answer, self.parts, self.feedback = answer, parts, feedback
        self.titles = {section_key(title) for part in parts if (title := section_title(part))}

    @cached_property
    def known(self) -> set[str]:
        present = (one.title for adr in parse_document(self.answer).adrs for one in adr.sections)
        return self.titles | set(map(section_key, present))

    def read_frames(self, frames: Mapping[int, FramedText]) -> dict[str, str]:
        """Return the requested parts of an answer by name. ``frames`` holds a reply's texts between ``<part>`` tags.

        Each part is read from the tags with its own number or, if they do not contain it, from any tags.
        """
        found: dict[str, str] = {}
        for number, part in enumerate(self.parts, 1):
            own = frames.get(number)
            found[part] = self.read_part(part, own.text, own_frame=True, end_known=own.closed) if own else ""
        lacking = [part for part in self.parts if not found[part] and (section_title(part) or in_header(part))]
        for frame in (frame for number, frame in frames.items() if number <= len(self.parts)):
            for part in lacking:
                found[part] = found[part] or self.read_part(part, frame.text, own_frame=False, end_known=frame.closed)
        return {part: text for part, text in found.items() if text}

    def find_bare_text(self, text: str) -> tuple[str, bool]:
        """Return the content of a reply that has no ``<part>`` tags, and True if no remark by the agent can follow it.

        The content is empty if the reply does not begin with a requested part. A remark can follow unless the content
        is in a code fence or ends with a lone ``</part>``.
        """
        body, ended = cut_last_tag(strip_marker(text).strip("\n"))
        fence = find_only_fence(body)
        if fence and self._begins_with_part(fence[0]):
            return fence[0], True
        return (body, ended) if self._begins_with_part(body) else ("", False)

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

    def read_part(self, part: str, text: str, *, own_frame: bool, end_known: bool) -> str:
        """Return a part in ``text``, or ''. ``own_frame``: its tags held ``text``. ``end_known``: no remark follows.

        A part is a piece of an answer, such as a section. Its tags are the ``<part id=…>`` tags that the feedback asked
        for. If a remark by the agent may follow, a section that may end in one is not returned.
        """
        if title := section_title(part):
            return self._read_section(_BLANK_LINES.sub("", text), section_key(title), end_known=end_known)
        if part == YAML_HEADER:
            header = _read_header(text)
            return header if len(set(header_lines.find_entries(header)) & {*header_lines.FIELDS}) > 1 else ""
        if name := header_key(part):
            return _read_key(_read_header(text), name)
        if not own_frame or part == STEP_MARKER:
            return ""
        fence = find_only_fence(text)
        inside = fence[0] if fence else text.strip("\n").rstrip()
        if wanted := parse_fence_part(part):
            own = closed_fences(text, wanted[0])
            return parse_document(text).out.inner_text(own[0]) if own else inside
        return inside

    def _read_section(self, text: str, name: str, *, end_known: bool) -> str:
        fence = find_only_fence(text)
        if fence and self._begins_with_part(fence[0]):
            text = fence[0]
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
        body = body[: markers[0].start].rstrip() if markers else body
        fence = find_only_fence(body)
        if fence and not fence[1] and body.lstrip("`~ ").startswith(("markdown", "md")):
            body = _BLANK_LINES.sub("", fence[0].rstrip())
        prose = _CODE.sub("", body)
        if not has_content(body) or omits_text(body) or is_refusal(body) or is_json(body):
            return ""
        if _TOOL_CALL.search(prose if has_content(prose) else body):
            return ""
        if any(len(line) > _ECHO and line.strip("> *") in self.feedback for line in prose.split("\n")):
            return ""
        if not end_known and end == len(lines) and may_end_in_remark(body, self.answer):
            return ""
        return _demote_headings(body, level)

    def _ends_section(self, heading: Heading, level: int, name: str) -> bool:
        key = section_key(heading.title)
        known = key != name and (key in self.known or find_required_section(heading.title) is not None)
        return heading.level <= min(level, 2) or (known and heading.level <= max(level, 2))


def may_end_in_remark(body: str, answer: str) -> bool:
    """Return True if the last paragraph of a text, taken from a reply, may be the agent's remark about its reply.

    Without tags, nothing marks the end of the text. A short last paragraph may be a remark if it is below a horizontal
    rule, if it speaks to somebody, or if it has no number, code or link and shares no word with ``answer`` and the rest
    of the text.
    """
    before, _, last = body.rpartition("\n\n")
    above, (rule, _, below) = before.rstrip().rpartition("\n")[2], last.strip().partition("\n")
    ruled = bool(_RULE.fullmatch(rule) or _RULE.fullmatch(above))
    last = below if _RULE.fullmatch(rule) else last.strip()
    if not above or _HEADING.match(above) or "\n" in last or len(last) > _MAX_REMARK or not _PROSE.match(last):
        return False
    if ruled or _SPEAKS.search(last):
        return True
    fences = parse_outline(body).fences if may_hold_fences(body) else []
    inside = bool(fences) and fences[-1].end > body.count("\n")
    said = _ABOUT_REPLY.sub(" ", last)
    if inside or (said == last and _REFERENCE.search(last)):
        return False
    about = {word.casefold() for word in _WORD.findall(said)}
    return about.isdisjoint(map(str.casefold, _WORD.findall(f"{before}\n{answer}")))


def find_only_fence(text: str, *, json: bool = False) -> tuple[str, bool] | None:
    """Return the content of a text's only Markdown fence, and True if other text is around it. ``json`` allows JSON.

    Return None for several fences and for a fence with code.
    """
    marks = _FENCE.finditer(text)
    first = next(marks, None)
    if first is None or first[2].lower() not in (_INFOS | {"json"} if json else _INFOS):
        return None
    depth = 1
    for mark in marks:
        if mark[1].startswith(first[1]):
            depth += 1 if mark[2] else -1
        if not depth and next(marks, None):
            return None
        if not depth:
            around = text[: first.start()].strip() or text[mark.end() :].strip()
            return text[first.end() + 1 : mark.start() - 1], bool(around)
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
    fence = find_only_fence(text)
    lines = (fence[0] if fence else text).strip("\n").split("\n")
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
