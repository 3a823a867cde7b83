"""The content guard: what a retry asks for, and what a new answer lost of the answer before it (CONTENT_LOST)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from api_client.contract.issue import ValidationIssue
from worker.enforcement.attempt import Attempt
from worker.enforcement.documents import header_lines
from worker.enforcement.documents.adr import Adr, Section
from worker.enforcement.documents.content import has_content
from worker.enforcement.documents.document import parse_document
from worker.enforcement.documents.part_names import (
    STEP_MARKER,
    YAML_HEADER,
    header_key,
    in_header,
    section_part,
    section_title,
)
from worker.enforcement.documents.placeholders import omits_text
from worker.enforcement.documents.splice import can_replace_directly, only_adr, put_section
from worker.enforcement.documents.step import strip_marker
from worker.enforcement.documents.titles import find_required_section, plain_title, section_key
from worker.enforcement.validators.codes import choose_text, make_issue

GUARD = "content_guard"
LOST = "CONTENT_LOST"
#: Code for a validator that failed, which no retry can repair.
NOT_JUDGED = "VALIDATOR_ERROR"
#: Codes for an answer that consists of reasoning alone, or of a step marker, which no repair completes.
ONLY_REASONING, ONLY_MARKER = "ONLY_REASONING", "ONLY_MARKER"

#: A section was merged, not lost, if at least this share of its lines is elsewhere in the answer.
_MERGED_SHARE = 0.5
_LONG_LINE = 20
#: Least share of its length that a section must keep in a whole answer that nobody asked for.
_LEAST_KEPT = 0.7
#: With more wrong parts than this, a retry asks for a whole new answer.
MOST_PARTS = 20


@dataclass(frozen=True, slots=True)
class RetryRequest:
    """A request to the agent after a rejected answer, for parts of the answer or for a whole new answer.

    ``shortens``: the rule of an error wants less text.
    """

    parts: tuple[str, ...] = ()
    whole: bool = False
    shortens: bool = False


def derive_request(answer: str, errors: Iterable[ValidationIssue]) -> RetryRequest:
    """Return what to ask the agent for, given the errors in its answer. Errors in files are ignored."""
    mine = [error for error in errors if error.is_error and not error.file and error.code != NOT_JUDGED]
    named = dict.fromkeys(error.part for error in mine)
    shortens = any(error.shortens for error in mine)
    if len(named) > MOST_PARTS:
        return RetryRequest((), whole=True, shortens=shortens)
    adr = only_adr(answer) if any(named) else None
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


def find_lost_content(
    answer: str,
    errors: Sequence[ValidationIssue],
    after: str,
    locale: str,
    files: Sequence[str] = (),
    *,
    adrs_only: bool = False,
    check_length: bool = False,
) -> list[ValidationIssue]:
    """Return an issue (CONTENT_LOST) for each ADR and each good section of an answer that the text ``after`` lacks.

    A section is good if it has content, and is required or without errors. Content in one of ``files`` is not lost.
    ``adrs_only`` ignores sections. ``check_length``: a section must not be much shorter either.
    """
    adrs = parse_document(answer).adrs
    if after == answer or not adrs:
        return []
    adrs_only = adrs_only or any(error.shortens for error in errors)
    named = {section_key(title) for error in errors if not error.file and (title := section_title(error.part))}
    there = _ContentIndex([after, *files])
    found: dict[str, str] = {}
    if lacks_adr(answer, [after, *files]):
        found |= dict.fromkeys((f"ADR-{_adr_number(adr)}" if _adr_number(adr) else "ADR" for adr in adrs), "")
    surgical = only_adr(after) is not None
    for adr in adrs if not (adrs_only or found) else ():
        for one in adr.sections:
            title, body = plain_title(one.title), section_body(adr, one)
            guarded = find_required_section(one.title) or section_key(one.title) not in named
            if not guarded or not has_content(body):
                continue
            part = section_part(title) if surgical else ""
            if not there.has_section(title, body):
                found[section_part(title)] = part
            elif check_length and not there.has_section(title, body, _LEAST_KEPT):
                found[choose_text(locale, f"mehr als die Hälfte von '## {title}'", f"most of '## {title}'")] = part
    return [replace(make_issue(LOST, locale, part=part, what=what), validator=GUARD) for what, part in found.items()]


def lacks_adr(answer: str, texts: Sequence[str]) -> bool:
    """Return True if ``texts`` lack an architecture decision record (ADR) that ``answer`` has. Numbers identify ADRs.

    ``texts`` are the agent's reply and the files that it wrote. If the answer has only one numbered ADR, any ADR in the
    texts is enough.
    """
    numbers = {_adr_number(adr) for adr in parse_document(answer).adrs} - {""}
    there = [adr for text in texts for adr in parse_document(text).adrs]
    several = len(numbers) > 1 and not numbers <= set(map(_adr_number, there))
    return several or not there


def find_unresolved_losses(
    missing: Iterable[ValidationIssue], earlier: Iterable[Attempt], after: str, locale: str, files: Sequence[str] = ()
) -> list[ValidationIssue]:
    """Return those issues about lost content whose content is still missing from the new text ``after``."""
    open_ = {issue.message for issue in missing if issue.code == LOST}
    if not open_:
        return []
    texts = ((attempt.answer or attempt.text, attempt.errors) for attempt in earlier)
    found = (
        issue
        for text, errors in texts
        for issue in find_lost_content(text, errors, after, locale, files, check_length=True)
    )
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
    """Return True if an automatic edit of an answer removed only sections that the errors name."""
    mine = [error for error in errors if error.is_error and error.code != LOST]
    if len(parse_document(after).adrs) < len(parse_document(before).adrs):
        return False
    return any(error.shortens for error in mine) or not find_lost_content(before, mine, after, "en")


def section_body(adr: Adr, section: Section) -> str:
    return "\n".join(adr.out.lines[section.line + 1 : section.end])


class _ContentIndex:
    def __init__(self, texts: Sequence[str]) -> None:
        adrs = [adr for text in texts for adr in parse_document(text).adrs]
        bodies = [(section_key(one.title), section_body(adr, one)) for adr in adrs for one in adr.sections]
        bodies.sort(key=lambda one: len(one[1]))  # the longest of several counts
        self._sections = {name: body for name, body in bodies if has_content(body) and not omits_text(body)}
        self._lines = {line.strip() for text in texts for line in text.split("\n")}

    def has_section(self, title: str, body: str, least: float = 0.0) -> bool:
        """Return True if a text has most lines of the section, or a section of this title that is not much shorter.

        ``least`` is the least share of the old length.
        """
        lines = [line.strip() for line in body.split("\n") if len(line.strip()) >= _LONG_LINE]
        merged = bool(lines) and sum(line in self._lines for line in lines) > max(_MERGED_SHARE, least) * len(lines)
        found = self._sections.get(section_key(title))
        return merged or (found is not None and len(found.strip()) >= least * len(body.strip()))


def _adr_number(adr: Adr) -> str:
    node = adr.root.find_value("adr_id") if adr.root is not None else None
    return node.value.strip().lstrip("0") if node is not None and node.kind == "scalar" else ""


def _find_section_body(adr: Adr, title: str) -> str:
    same = (section_body(adr, section) for section in adr.sections if section_key(section.title) == section_key(title))
    return next((body for body in same if has_content(body)), "")
