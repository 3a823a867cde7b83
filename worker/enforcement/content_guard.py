"""The content guard: choose the answer that counts after a retry, and report lost content.

If the retry asked for parts, the reply changes only those parts. If it asked for a whole answer, the reply replaces the
previous answer, but never without its ADR or a good section (CONTENT_LOST).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from api_client.contract.issue import ValidationIssue
from api_client.contract.step_marker import format_marker
from worker.enforcement.attempt import Attempt, find_best_attempt, latest_attempts
from worker.enforcement.documents import header_lines
from worker.enforcement.documents.adr import Adr, Section
from worker.enforcement.documents.content import has_content
from worker.enforcement.documents.document import parse_document
from worker.enforcement.documents.header_lines import find_entries
from worker.enforcement.documents.part import (
    FILES,
    STEP_MARKER,
    YAML_HEADER,
    field_part,
    header_key,
    in_header,
    section_part,
    section_title,
)
from worker.enforcement.documents.placeholders import omits_text
from worker.enforcement.documents.splice import (
    Part,
    can_replace_directly,
    only_adr,
    put_header,
    put_key,
    put_marker,
    put_section,
)
from worker.enforcement.documents.step import strip_marker
from worker.enforcement.documents.titles import find_required_section, plain_title, section_key
from worker.enforcement.replies.frames import unwrap_value
from worker.enforcement.replies.reply_parts import ReplyParts, find_own_parts, find_reply_parts
from worker.enforcement.replies.vocabulary import is_talk
from worker.enforcement.validators.codes import make_issue

GUARD = "content_guard"
LOST = "CONTENT_LOST"
#: Code for a validator that failed, which no retry can repair.
NOT_JUDGED = "VALIDATOR_ERROR"

#: A reply below this share of the previous answer is a fragment, if that answer has at least this length.
_FRAGMENT_SHARE, _SOME_LENGTH = 0.3, 200
#: Least share of a section's lines elsewhere in the answer: then the section was merged, not lost.
_MERGED_SHARE = 0.5
_LONG_LINE = 20
#: With more wrong parts than this, a retry asks for a whole new answer.
MOST_PARTS = 20


@dataclass(frozen=True, slots=True)
class RetryRequest:
    """Request to the agent after a rejected answer: for parts of the answer, or for a whole new answer.

    ``shortens``: the rule of an error wants less text.
    """

    parts: tuple[str, ...] = ()
    whole: bool = False
    shortens: bool = False


def derive_request(answer: str, errors: Iterable[ValidationIssue]) -> RetryRequest:
    """Return what to ask the agent for when its answer has these errors.

    Errors in files are ignored.
    """
    mine = [error for error in errors if error.is_error and not error.file and error.code != NOT_JUDGED]
    named = dict.fromkeys(error.part for error in mine)
    shortens = any(error.shortens for error in mine)
    if len(named) > MOST_PARTS:
        return RetryRequest((), whole=True, shortens=shortens)
    adr = only_adr(answer)
    by_lines = adr and adr.header is not None and header_lines.is_editable_by_lines(adr.yaml_text)
    if any(map(header_key, named)) and not by_lines:
        named = dict.fromkeys(YAML_HEADER if in_header(part) and header_key(part) else part for part in named)
    parts = tuple(
        part
        for part in named
        if part == STEP_MARKER
        or (adr and (in_header(part) or section_title(part)))
        or can_replace_directly(part, answer)
    )
    return RetryRequest(parts, whole=len(parts) < len(named), shortens=shortens)


@dataclass(frozen=True, slots=True)
class MergedAnswer:
    """The result of merging the agent's reply into an earlier answer.

    Attributes:
        inserted: the texts taken from the reply, by part name; empty if the answer is the unchanged reply.
    """

    answer: str
    inserted: Mapping[str, str] = field(default_factory=dict)


class _AnswerBuilder:
    def __init__(self, answer: str) -> None:
        self.answer = answer
        self.inserted: dict[str, str] = {}

    def record_part(self, part: str, text: str, after: str) -> None:
        if after != self.answer:
            self.answer, self.inserted[part] = after, text


def assemble_answer(history: Sequence[Attempt], text: str, files: Iterable[str] = (), feedback: str = "") -> str:
    """Merge the agent's new text into the best earlier answer, and return the resulting answer.

    ``history`` has its issues weighed by the policy; ``files`` are texts written beside the answer.
    """
    before = find_best_attempt(latest_attempts(history))
    if before is None or not before.errors:
        return text
    return merge_reply(before.answer, before.errors, text, files, feedback).answer


def merge_reply(
    answer: str, errors: Sequence[ValidationIssue], reply: str, files: Iterable[str] = (), feedback: str = ""
) -> MergedAnswer:
    """Merge the agent's reply into an earlier answer, and return the result.

    ``errors`` are the errors of that answer, which the reply was asked to correct. ``files`` are texts that the agent
    wrote beside the reply. Text that repeats ``feedback`` is ignored.
    """
    request = derive_request(answer, errors)
    if request.whole and _may_replace(reply, answer, request, files):
        value = unwrap_value(reply) if request.shortens else reply
        return MergedAnswer(value, {} if value == reply else {"": value})
    splice = _AnswerBuilder(answer)
    if request.parts:
        again = [error.part for error in errors if error.code == LOST]
        offer = find_reply_parts(reply, request.parts, answer, again, feedback)
        own = [part for part in request.parts if can_replace_directly(part, answer)]
        found = find_own_parts(answer, own, reply)
        found |= {
            part: body
            for part in own
            if (title := section_title(part)) and (body := offer.sections.get(section_key(title)))
        }
        for part, text in found.items():
            splice.record_part(part, text, Part(part).put(splice.answer, text))
        _insert_parts(splice, errors, offer, [part for part in request.parts if part not in own])
    return MergedAnswer(splice.answer, splice.inserted)


def find_lost_content(
    answer: str,
    errors: Sequence[ValidationIssue],
    after: str,
    locale: str,
    files: Sequence[str] = (),
    *,
    adrs_only: bool = False,
) -> list[ValidationIssue]:
    """Return an issue for each part of the old answer that the new answer lost.

    Such parts are ADRs and good sections; the code is CONTENT_LOST. A section is good if it has content, and is
    required or without errors. Content in one of ``files`` is not lost. ``adrs_only`` ignores sections.
    """
    adrs = parse_document(answer).adrs
    if after == answer or not adrs:
        return []
    adrs_only = adrs_only or any(error.shortens for error in errors)
    named = {section_key(title) for error in errors if not error.file and (title := section_title(error.part))}
    there = _ContentIndex([after, *files])
    found: dict[str, None] = {}
    for place, adr in enumerate(adrs):
        if not there.has_adr(adr, place):
            found[f"ADR-{_adr_number(adr)}" if _adr_number(adr) else "ADR"] = None
        elif not adrs_only:
            guarded = (
                one for one in adr.sections if find_required_section(one.title) or section_key(one.title) not in named
            )
            bodies = ((plain_title(one.title), section_body(adr, one)) for one in guarded)
            found |= {
                f"## {title}": None
                for title, body in bodies
                if has_content(body) and not there.has_section(title, body)
            }
    surgical = only_adr(after) is not None
    return [_content_lost_issue(what, locale, what if surgical and section_title(what) else "") for what in found]


def find_unresolved_losses(
    missing: Iterable[ValidationIssue], earlier: Iterable[Attempt], after: str, locale: str, files: Sequence[str] = ()
) -> list[ValidationIssue]:
    """Return those issues about lost content that a later answer does not resolve.

    ``earlier`` are the attempts before that attempt.
    """
    open_ = {issue.message for issue in missing if issue.code == LOST}
    if not open_:
        return []
    texts = ((attempt.answer or attempt.text, attempt.errors) for attempt in earlier)
    found = (issue for text, errors in texts for issue in find_lost_content(text, errors, after, locale, files))
    return list({issue.message: issue for issue in found if issue.message in open_}.values())


def restore_sections(answer: str, errors: Iterable[ValidationIssue], earlier: Iterable[str]) -> tuple[str, list[str]]:
    """Restore lost sections of an answer from earlier answers, and return the new answer and the restored titles."""
    back: list[str] = []
    texts = list(earlier)
    for error in errors:
        title = section_title(error.part) if error.code == LOST else None
        if not title:
            continue
        for text in reversed(texts):
            body = next((body for adr in parse_document(text).adrs if (body := _find_section_body(adr, title))), "")
            if body and (after := put_section(answer, title, strip_marker(body).strip())) != answer:
                answer = after
                back.append(title)
                break
    return answer, back


def keeps_content(before: str, after: str, errors: Iterable[ValidationIssue]) -> bool:
    """Return True if an automatic edit removes nothing from the answer except the sections that the errors name."""
    mine = [error for error in errors if error.is_error and error.code != LOST]
    if len(parse_document(after).adrs) < len(parse_document(before).adrs):
        return False
    return any(error.shortens for error in mine) or not find_lost_content(before, mine, after, "en")


def section_body(adr: Adr, section: Section) -> str:
    """Return the text of a section without its heading."""
    return "\n".join(adr.out.lines[section.line + 1 : section.end])


def _content_lost_issue(what: str, locale: str, part: str) -> ValidationIssue:
    return replace(make_issue(LOST, locale, part=part, what=what), validator=GUARD)


class _ContentIndex:
    def __init__(self, texts: Sequence[str]) -> None:
        self._adrs = [parse_document(text).adrs for text in texts]
        every = [(adr, section) for adrs in self._adrs for adr in adrs for section in adr.sections]
        bodies = ((section_key(section.title), section_body(adr, section)) for adr, section in every)
        self._sections = {name for name, body in bodies if has_content(body) and not omits_text(body)}
        self._lines = {line.strip() for text in texts for line in text.split("\n")}

    def has_adr(self, adr: Adr, place: int) -> bool:
        """Return True if one of the texts contains this ADR, recognised by its number or its position."""
        number = _adr_number(adr)
        return any(place < len(adrs) or (number and number in map(_adr_number, adrs)) for adrs in self._adrs)

    def has_section(self, title: str, body: str = "") -> bool:
        """Return True if one of the texts has this section with content, or has most of its lines elsewhere."""
        lines = [line.strip() for line in body.split("\n") if len(line.strip()) >= _LONG_LINE]
        merged = bool(lines) and sum(line in self._lines for line in lines) > _MERGED_SHARE * len(lines)
        return section_key(title) in self._sections or merged


def _may_replace(reply: str, answer: str, request: RetryRequest, files: Iterable[str]) -> bool:
    if not strip_marker(reply).strip():
        return False
    if adrs := parse_document(answer).adrs:
        texts = [text for text in (reply, *files) if len(parse_document(text).adrs) >= len(adrs)]
        named = {section_key(title) for part in request.parts if (title := section_title(part))}
        found = [adr for text in texts for adr in parse_document(text).adrs]
        return any(
            adr.has_title or any(section_key(section.title) not in named for section in adr.sections) for adr in found
        )
    body = strip_marker(reply).strip()
    if request.shortens:
        return True
    if is_talk(body, answer):
        return False
    before = len(strip_marker(answer).strip())
    return before < _SOME_LENGTH or len(body) >= _FRAGMENT_SHARE * before


def _insert_parts(
    splice: _AnswerBuilder, errors: Sequence[ValidationIssue], offer: ReplyParts, parts: Sequence[str]
) -> None:
    named = _named_files(splice.answer, errors)
    for name, lines in offer.keys.items():
        splice.record_part(
            field_part(name), lines, _keep_if_safe(splice.answer, put_key(splice.answer, name, lines, named))
        )
    if offer.header:
        splice.record_part(
            YAML_HEADER, offer.header, _keep_if_safe(splice.answer, put_header(splice.answer, offer.header))
        )
    for name, title in {section_key(title): title for part in parts if (title := section_title(part))}.items():
        if body := offer.sections.get(name):
            splice.record_part(section_part(title), body, _insert_section(splice.answer, title, body))
    if offer.step:
        splice.record_part(STEP_MARKER, format_marker(offer.step), put_marker(splice.answer, offer.step))


def _insert_section(answer: str, title: str, body: str) -> str:
    """Return the answer with a section inserted, or with an existing section of the same text renamed."""
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
    """Return the changed text, or the old text if the change would remove an ADR or a section."""
    old, new = parse_document(before).adrs, parse_document(after).adrs
    if len(old) != len(new):
        return before
    kept = (_section_titles(was) <= _section_titles(adr) for was, adr in zip(old, new, strict=True))
    return after if all(kept) else before


def _section_titles(adr: Adr) -> set[str]:
    return {section_key(section.title) for section in adr.sections}


def _named_files(answer: str, errors: Sequence[ValidationIssue]) -> frozenset[int]:
    adr = only_adr(answer)
    block = find_entries(adr.yaml_text).get(FILES) if adr and adr.header else None
    if adr is None or block is None:
        return frozenset()
    return frozenset(error.line - adr.header_line(block.start) for error in errors if not error.file)


def _adr_number(adr: Adr) -> str:
    node = adr.root.find_value("adr_id") if adr.root is not None else None
    return node.value.strip().lstrip("0") if node is not None and node.kind == "scalar" else ""


def _find_section_body(adr: Adr, title: str) -> str:
    same = (section_body(adr, section) for section in adr.sections if section_key(section.title) == section_key(title))
    return next((body for body in same if has_content(body)), "")
