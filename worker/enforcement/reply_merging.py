"""Merging of an agent's reply into an earlier answer: candidates in order of preference.

The first candidate that the validators accept counts, else the answer with the parts that were read.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import pairwise

from api_client.contract.issue import ValidationIssue
from api_client.contract.step_marker import format_marker
from worker.enforcement.content_guard import RetryRequest, derive_request, lacks_adr, section_body
from worker.enforcement.documents.adr import Adr
from worker.enforcement.documents.content import is_json
from worker.enforcement.documents.document import parse_document
from worker.enforcement.documents.header_lines import find_entries
from worker.enforcement.documents.part_names import (
    FILES,
    STEP_MARKER,
    YAML_HEADER,
    header_key,
    lines_range,
    section_title,
)
from worker.enforcement.documents.splice import (
    Part,
    can_replace_directly,
    only_adr,
    put_header,
    put_key,
    put_marker,
    put_section,
    remove_copies,
)
from worker.enforcement.documents.step import strip_marker
from worker.enforcement.documents.titles import find_required_section, section_key
from worker.enforcement.replies.part_reader import extract_parts, find_single_fence, may_end_in_remark, read_step_name
from worker.enforcement.replies.part_tags import find_tagged_texts
from worker.enforcement.replies.refusals import is_refusal

#: A reply below this share of the previous answer is a fragment, if that answer has at least this length.
_FRAGMENT_SHARE, _SOME_LENGTH = 0.3, 200
#: Least share of the words outside the requested parts that a whole new answer must keep.
_KEPT_WORDS = 0.7
_WORD = re.compile(r"\w+")
_HEADING, _HTML_HEADING = re.compile(r"#{1,6}[ \t]"), re.compile(r"</?h[1-6]\b[^<>]{0,80}>")
#: Marks and a number at the beginning of a line.
_LEAD = re.compile(r"\A\W{0,20}\d{1,3}[.)](?=\s)")
#: A line of this length is the end of an answer if it occurs as often in the reply.
_SOME_LINE = 20
#: A remark around a repeated answer: at most three short paragraphs of one line, without structure.
_PLAIN = re.compile(r"(?:(?![-+*>#|`<~]|\d{1,3}[.)]\s)[^\n]{1,200}(?:\n\s*\n|\Z)){1,3}")


@dataclass(frozen=True, slots=True)
class MergedAnswer:
    """The result of merging the agent's reply into an earlier answer.

    Attributes:
        inserted: the texts taken from the reply, by part name; empty if the answer is the unchanged reply.
        whole: the reply replaces the earlier answer, although only parts of it were requested.
    """

    answer: str
    inserted: Mapping[str, str] = field(default_factory=dict)
    whole: bool = False


def list_candidates(
    answer: str,
    errors: Sequence[ValidationIssue],
    reply: str,
    files: Iterable[str] = (),
    feedback: str = "",
    parts_text: str | None = None,
) -> list[MergedAnswer]:
    """Return the possible corrected answers after an agent's reply to feedback, the most promising first.

    A reply may replace ``answer``, or correct parts of it. ``errors`` are the errors of ``answer``, ``files`` are texts
    that the agent wrote beside the reply.
    ``parts_text`` is the reply from which parts are read, if it differs.
    """
    request = derive_request(answer, errors)
    whole = _remove_tags(reply, feedback)
    if request.parts and not request.whole:
        whole = _cut_remarks(whole, answer)
    replaces = _may_replace(whole, answer, request, files)
    if request.whole and replaces:
        fence = find_single_fence(strip_marker(whole), allow_json=True) if request.shortens else None
        accepts = fence and (not fence.surrounded or is_json(fence.text))
        value = fence.text + whole[len(strip_marker(whole)) :] if fence and accepts else whole
        return [MergedAnswer(value, {} if value == reply else {"": value})]
    merged = _merge_parts(answer, errors, reply if parts_text is None else parts_text, request, feedback)
    if not replaces:
        return [merged]
    again = MergedAnswer(whole, {} if whole == reply else {"": whole}, whole=True)
    better = (
        _adds_structure(merged.answer, whole)
        or _has_same_sections(merged.answer, whole)
        or _is_complete_and_shorter(merged.answer, answer, request.parts, whole)
    )
    return [again, merged] if better else [merged, again]


def _remove_tags(reply: str, feedback: str) -> str:
    """Return the text in a reply's only ``<part>`` element, "" for several elements, or the reply if there is none."""
    tagged_texts = list(find_tagged_texts(reply, feedback).values())
    if not tagged_texts:
        return reply
    return tagged_texts[0].text.strip("\r\n") if len(tagged_texts) == 1 else ""


def _cut_remarks(reply: str, answer: str) -> str:
    """Remove the agent's remarks around a repeated answer. Return an empty string if the answer's end is uncertain."""
    own = [line for line in strip_marker(answer).split("\n") if line.strip()]
    lines = reply.split("\n")
    if not own or own[0] not in lines or _PLAIN.fullmatch(own[0]):
        return reply
    start = lines.index(own[0])
    start = start if _PLAIN.fullmatch("\n".join(lines[:start]).strip()) else 0
    last = own[-1]
    if len(last) >= _SOME_LINE and not last.startswith("#") and lines.count(last) == own.count(last):
        end = len(lines) - lines[::-1].index(last)
        if _PLAIN.fullmatch("\n".join(lines[end:]).strip()):
            return "\n".join(lines[start:end]) + answer[len(answer.rstrip()) :]
    text = "\n".join(lines[start:])
    return "" if start and may_end_in_remark(text.rstrip(), answer) else text


def _may_replace(reply: str, answer: str, request: RetryRequest, files: Iterable[str]) -> bool:
    body, before = strip_marker(reply).strip(), strip_marker(answer).strip()
    if not body or is_refusal(body):
        return False
    if parse_document(answer).adrs:
        named = {section_key(title) for part in request.parts if (title := section_title(part))}
        found = [adr for text in (reply, *files) for adr in parse_document(text).adrs]
        return not lacks_adr(answer, [reply, *files]) and any(
            adr.has_title or any(section_key(section.title) not in named for section in adr.sections) for adr in found
        )
    if request.shortens:
        return True
    if len(before) >= _SOME_LENGTH and len(body) < _FRAGMENT_SHARE * len(before):
        return False
    if not request.whole and not _keeps_headings(answer, request.parts, body):
        return False
    short = len(before) < _SOME_LENGTH and _adds_structure(answer, reply)
    return request.whole or short or _keeps_words(answer, request.parts, body)


def _keeps_headings(answer: str, parts: Sequence[str], reply: str) -> bool:
    """Return True if a reply has at least half of the answer's headings outside the given parts.

    A title of its own counts as the answer's title.
    """
    named = {section_key(section_title(part) or "") for part in parts}
    title, retitled = _find_title(answer), _find_title(reply)
    others = _list_structure(_text_outside(answer, parts)) - named - {title}
    kept = len(others & _list_structure(reply)) + bool(title and retitled and retitled not in named)
    return 2 * kept >= len(others) + bool(title)


def _find_title(text: str) -> str:
    headings = parse_document(text).out.headings
    return section_key(headings[0].title) if headings and headings[0].level == 1 else ""


def _keeps_words(answer: str, parts: Sequence[str], reply: str) -> bool:
    outside = strip_marker(_text_outside(answer, parts)).strip()
    if f"\n{outside}\n" in f"\n{reply}\n":
        return True
    words = set(_WORD.findall(outside.casefold()))
    return len(words & set(_WORD.findall(reply.casefold()))) >= _KEPT_WORDS * len(words)


def _text_outside(answer: str, parts: Sequence[str]) -> str:
    spans = sorted(found for part in parts if part != STEP_MARKER and (found := Part(part).find(answer)))
    kept, past = [], 0
    for start, end in spans:
        kept.append(answer[past : max(start, past)])
        past = max(past, end)
    return "".join([*kept, answer[past:]])


def _adds_structure(answer: str, reply: str) -> bool:
    return not _list_structure(reply) <= _list_structure(answer)


def _list_structure(text: str) -> set[str]:
    document = parse_document(text)
    found = {section_key(heading.title) for heading in document.out.headings if heading.top and heading.level <= 2}
    return found | {"---" for adr in document.adrs if adr.header}


def _has_same_sections(merged: str, reply: str) -> bool:
    """Return True if a reply has the merged answer's sections in any order, perhaps with a step marker besides."""
    return _sorted_sections(merged) in (_sorted_sections(reply), _sorted_sections(strip_marker(reply)))


def _sorted_sections(text: str) -> list[str]:
    document = parse_document(text)
    starts = [0, *(document.position_of(heading.line) for heading in document.out.headings if heading.top)]
    sections = (text[start:end].strip() for start, end in pairwise((*starts, len(text))))
    return sorted(section for section in sections if section)


def _is_complete_and_shorter(merged: str, answer: str, parts: Sequence[str], reply: str) -> bool:
    """Return True if the reply keeps all lines outside the requested parts, and is shorter than the merged answer.

    A line of the answer may be a heading of the reply, without its marks and number.
    """
    outside = _text_outside(answer, parts)
    named = {section_key(section_title(part) or "") for part in parts}
    if not _list_titles(outside) - named - {_find_title(answer)} <= _list_titles(reply):
        return False
    titles = {_list_words(heading.title) for heading in parse_document(reply).out.headings}
    others = "\n".join(line for line in outside.split("\n") if not _HEADING.match(line))
    there = _plain_lines(reply, titles)
    is_whole = not Counter(_plain_lines(others, titles)) - Counter(there)
    return is_whole and len(_plain_lines(merged, titles)) > len(there)


def _list_titles(text: str) -> set[str]:
    return {section_key(heading.title) for heading in parse_document(text).out.headings}


def _plain_lines(text: str, titles: Set[str]) -> list[str]:
    """Return the words of each line that has any. Lines that are one of these titles lose their number."""
    found = []
    for line in text.split("\n"):
        line = _HTML_HEADING.sub("", line)
        bare = _list_words(_LEAD.sub("", line, count=1))
        found.append(bare if bare in titles else _list_words(line))
    return [words for words in found if words]


def _list_words(line: str) -> str:
    return " ".join(_WORD.findall(line.casefold()))


class _AnswerBuilder:
    def __init__(self, answer: str) -> None:
        self.answer = answer
        self.inserted: dict[str, str] = {}

    def record_part(self, part: str, text: str, after: str) -> None:
        if after != self.answer:
            self.answer, self.inserted[part] = after, text


def _merge_parts(
    answer: str, errors: Sequence[ValidationIssue], reply: str, request: RetryRequest, feedback: str
) -> MergedAnswer:
    splice = _AnswerBuilder(answer)
    found = extract_parts(reply, request.parts, answer, feedback)
    named = _named_files(answer, errors)
    for part in sorted(found, key=_insertion_order):
        text, now = found[part], splice.answer
        title, name = section_title(part), header_key(part)
        if can_replace_directly(part, now):
            after = Part(part).put(remove_copies(now, title) if title else now, text)
        elif part == YAML_HEADER:
            after = _keep_if_safe(now, put_header(now, text))
        elif name:
            after = _keep_if_safe(now, put_key(now, name, text, named))
        else:
            after = _insert_section(now, str(title), text) if title else now
        splice.record_part(part, text, after)
    if STEP_MARKER in request.parts and (step := read_step_name(reply)):
        splice.record_part(STEP_MARKER, format_marker(step), put_marker(splice.answer, step))
    return MergedAnswer(splice.answer, splice.inserted)


def _insertion_order(part: str) -> tuple[int, int]:
    """Return a sort key that puts line ranges first, in descending order, so that earlier line numbers stay valid."""
    lines = lines_range(part)
    return (0, -lines[0]) if lines else (1, 0)


def _insert_section(answer: str, title: str, body: str) -> str:
    adr = only_adr(answer)
    sections = (
        [] if adr is None or any(section_key(one.title) == section_key(title) for one in adr.sections) else adr.sections
    )
    same = [one for one in sections if adr and section_body(adr, one).split() == body.split()]
    if adr is None or not same:
        return _keep_if_safe(answer, put_section(answer, title, body))
    start = adr.char_of(same[0].line)
    renamed = answer[start:].replace(same[0].title, title, 1)
    return answer[:start] + renamed if not find_required_section(same[0].title) and len(same) == 1 else answer


def _keep_if_safe(before: str, after: str) -> str:
    """Return the changed text, or the old text if the change removed an ADR or a section."""
    old, new = parse_document(before).adrs, parse_document(after).adrs
    if len(old) != len(new):
        return before
    return after if not any(map(_lacks_section, new, old)) else before


def _lacks_section(adr: Adr, before: Adr) -> bool:
    titles = {section.title for section in adr.sections}
    gone = {section.title for section in before.sections} - titles
    return bool(gone) and not set(map(section_key, gone)) <= set(map(section_key, titles))


def _named_files(answer: str, errors: Sequence[ValidationIssue]) -> frozenset[int]:
    adr = only_adr(answer)
    block = find_entries(adr.yaml_text).get(FILES) if adr and adr.header else None
    if adr is None or block is None:
        return frozenset()
    return frozenset(error.line - adr.header_line(block.start) for error in errors if not error.file)
