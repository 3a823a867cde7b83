"""The content guard: which answer counts after a retry. One rule, for the engine and for ``ResponseEnforcer``.

Asked for parts, the answer before stays, and only those parts are taken from whatever comes back. Asked for a whole
answer, a new one may take its place: never a text without the ADR that stood there, and never without a section
that was good (CONTENT_LOST). docs/enforcement.md has the table.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from api_client.contract.issue import ValidationIssue
from api_client.contract.marker import marker
from worker.enforcement.attempt import Attempt, best, latest_set
from worker.enforcement.documents import header_lines
from worker.enforcement.documents.adr import Adr, Section
from worker.enforcement.documents.content import has_content
from worker.enforcement.documents.document import parse
from worker.enforcement.documents.header_lines import blocks
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
from worker.enforcement.documents.placeholders import leaves_out
from worker.enforcement.documents.splice import Part, is_own, only_adr, put_header, put_key, put_marker, put_section
from worker.enforcement.documents.step import strip_marker
from worker.enforcement.documents.titles import key, plain, required
from worker.enforcement.replies.evidence import is_talk
from worker.enforcement.replies.frames import value_of
from worker.enforcement.replies.offer import Offer, own_parts, read_reply
from worker.enforcement.validators.codes import issue

#: Who finds CONTENT_LOST, as validators are named.
GUARD = "content_guard"
LOST = "CONTENT_LOST"
#: A validator could not judge: no answer of the agent repairs that, so nothing is asked for.
NOT_JUDGED = "VALIDATOR_ERROR"

#: A reply shorter than this share of the answer before it is a fragment, if that answer has some length.
_FRAGMENT_SHARE, _SOME_LENGTH = 0.3, 200
#: Share of a section's lines that stand elsewhere in a new answer: then it was merged into another, not lost.
_MERGED_SHARE = 0.5
_LONG_LINE = 20
#: Where more parts are wrong, a whole new answer is asked for: nobody sends this many one by one.
MOST_PARTS = 20


@dataclass(frozen=True, slots=True)
class Request:
    """The request of a retry.

    Attributes:
        parts: names of parts of the answer (``worker.enforcement.documents.part``).
        whole: a new answer is asked for, because an error is about no part that code can put in.
        shortens: an error's rule wants less text.
    """

    parts: tuple[str, ...] = ()
    whole: bool = False
    shortens: bool = False


def requested(answer: str, errors: Iterable[ValidationIssue]) -> Request:
    """Return what errors of an answer ask for; errors of files ask for nothing of the answer."""
    mine = [error for error in errors if error.is_error and not error.file and error.code != NOT_JUDGED]
    named = dict.fromkeys(error.part for error in mine)
    shortens = any(error.shortens for error in mine)
    if len(named) > MOST_PARTS:
        return Request((), whole=True, shortens=shortens)
    adr = only_adr(answer)
    by_lines = adr and adr.header is not None and header_lines.by_lines(adr.yaml_text)
    if any(map(header_key, named)) and not by_lines:
        named = dict.fromkeys(YAML_HEADER if in_header(part) and header_key(part) else part for part in named)
    parts = tuple(
        part
        for part in named
        if part == STEP_MARKER or (adr and (in_header(part) or section_title(part))) or is_own(part, answer)
    )
    return Request(parts, whole=len(parts) < len(named), shortens=shortens)


@dataclass(frozen=True, slots=True)
class TakenAnswer:
    """The answer that counts after a reply.

    Attributes:
        answer: the answer. put: the texts of the reply that are new in it, by the names of their parts; empty where the
            reply is the answer as it is.
    """

    answer: str
    put: Mapping[str, str] = field(default_factory=dict)


class _Splice:
    """An answer into which parts of a reply are put, one after the other."""

    def __init__(self, answer: str) -> None:
        self.answer = answer
        self.put: dict[str, str] = {}

    def take(self, part: str, text: str, after: str) -> None:
        """Take the answer after a part was put in; nothing is noted where that changed nothing."""
        if after != self.answer:
            self.answer, self.put[part] = after, text


def assemble(history: Sequence[Attempt], text: str, files: Iterable[str] = (), feedback: str = "") -> str:
    """The answer that counts for a new raw text and the ``files`` beside it, given the attempts before it.

    Their issues are as the policy weighs them; ``feedback`` is what the agent got.
    """
    before = best(latest_set(history))
    if before is None or not before.errors:
        return text
    return take(before.answer, before.errors, text, files, feedback).answer


def take(
    answer: str, errors: Sequence[ValidationIssue], reply: str, files: Iterable[str] = (), feedback: str = ""
) -> TakenAnswer:
    """The answer that counts after a reply to its errors, and what of the reply is in it.

    ``files`` are texts that the agent wrote beside its reply. A reply that repeats the ``feedback`` it got says
    nothing.
    """
    request = requested(answer, errors)
    if request.whole and _replaces(reply, answer, request, files):
        value = value_of(reply) if request.shortens else reply
        return TakenAnswer(value, {} if value == reply else {"": value})
    splice = _Splice(answer)
    if request.parts:
        again = [error.part for error in errors if error.code == LOST]
        offer = read_reply(reply, request.parts, answer, again, feedback)
        own = [part for part in request.parts if is_own(part, answer)]
        found = own_parts(answer, own, reply)
        found |= {
            part: body for part in own if (title := section_title(part)) and (body := offer.sections.get(key(title)))
        }
        for part, text in found.items():
            splice.take(part, text, Part(part).put(splice.answer, text))
        _splice(splice, errors, offer, [part for part in request.parts if part not in own])
    return TakenAnswer(splice.answer, splice.put)


def lost(
    answer: str,
    errors: Sequence[ValidationIssue],
    after: str,
    locale: str,
    files: Sequence[str] = (),
    *,
    adrs_only: bool = False,
) -> list[ValidationIssue]:
    """CONTENT_LOST for each ADR of the answer before that the one after it lacks, and for each good section.

    Good is a section with content that no error named; a required one also when an error named it. What is in a file
    that the agent wrote beside the new answer is not lost. ``adrs_only``: sections may go, as when an error's rule says
    that it shortens.
    """
    adrs = parse(answer).adrs
    if after == answer or not adrs:
        return []
    adrs_only = adrs_only or any(error.shortens for error in errors)
    named = {key(title) for error in errors if not error.file and (title := section_title(error.part))}
    there = _There([after, *files])
    found: dict[str, None] = {}
    for place, adr in enumerate(adrs):
        if not there.has_adr(adr, place):
            found[f"ADR-{_number(adr)}" if _number(adr) else "ADR"] = None
        elif not adrs_only:
            guarded = (one for one in adr.sections if required(one.title) or key(one.title) not in named)
            bodies = ((plain(one.title), body_of(adr, one)) for one in guarded)
            found |= {f"## {title}": None for title, body in bodies if has_content(body) and not there.has(title, body)}
    surgical = only_adr(after) is not None
    return [_lost(what, locale, what if surgical and section_title(what) else "") for what in found]


def still_lost(
    missing: Iterable[ValidationIssue], earlier: Iterable[Attempt], after: str, locale: str, files: Sequence[str] = ()
) -> list[ValidationIssue]:
    """Those of the CONTENT_LOST issues of an attempt that a later answer does not settle either.

    Other issues are left out. ``earlier`` are the attempts before it; ``files`` are as for ``lost``.
    """
    open_ = {issue.message for issue in missing if issue.code == LOST}
    if not open_:
        return []
    texts = ((attempt.answer or attempt.text, attempt.errors) for attempt in earlier)
    found = (issue for text, errors in texts for issue in lost(text, errors, after, locale, files))
    return list({issue.message: issue for issue in found if issue.message in open_}.values())


def restored(answer: str, errors: Iterable[ValidationIssue], earlier: Iterable[str]) -> tuple[str, list[str]]:
    """An answer with the sections that were lost, as they stood in an earlier one, and the titles that are back."""
    back: list[str] = []
    texts = list(earlier)
    for error in errors:
        title = section_title(error.part) if error.code == LOST else None
        if not title:
            continue
        for text in reversed(texts):
            body = next((body for adr in parse(text).adrs if (body := _body(adr, title))), "")
            if body and (after := put_section(answer, title, strip_marker(body).strip())) != answer:
                answer = after
                back.append(title)
                break
    return answer, back


def holds(before: str, after: str, errors: Iterable[ValidationIssue]) -> bool:
    """True when a change by code keeps each ADR and each good section that these errors do not name."""
    mine = [error for error in errors if error.is_error and error.code != LOST]
    if len(parse(after).adrs) < len(parse(before).adrs):
        return False
    return any(error.shortens for error in mine) or not lost(before, mine, after, "en")


def body_of(adr: Adr, section: Section) -> str:
    """A section's text below its heading."""
    return "\n".join(adr.out.lines[section.line + 1 : section.end])


def _lost(what: str, locale: str, part: str) -> ValidationIssue:
    return replace(issue(LOST, locale, part=part, what=what), validator=GUARD)


class _There:
    """The content of texts: their ADRs, the sections with content, and their lines."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._adrs = [parse(text).adrs for text in texts]
        every = [(adr, section) for adrs in self._adrs for adr in adrs for section in adr.sections]
        bodies = ((key(section.title), body_of(adr, section)) for adr, section in every)
        self._sections = {name for name, body in bodies if has_content(body) and not leaves_out(body)}
        self._lines = {line.strip() for text in texts for line in text.split("\n")}

    def has_adr(self, adr: Adr, place: int) -> bool:
        """True when an ADR is there, by its number, or by its place among the others."""
        number = _number(adr)
        return any(place < len(adrs) or (number and number in map(_number, adrs)) for adrs in self._adrs)

    def has(self, title: str, body: str = "") -> bool:
        """True when a section is there, or most of its lines are there in others."""
        lines = [line.strip() for line in body.split("\n") if len(line.strip()) >= _LONG_LINE]
        merged = bool(lines) and sum(line in self._lines for line in lines) > _MERGED_SHARE * len(lines)
        return key(title) in self._sections or merged


def _replaces(reply: str, answer: str, request: Request, files: Iterable[str]) -> bool:
    """True when a reply may take the place of an answer that was asked for again."""
    if not strip_marker(reply).strip():
        return False
    if adrs := parse(answer).adrs:
        texts = [text for text in (reply, *files) if len(parse(text).adrs) >= len(adrs)]
        named = {key(title) for part in request.parts if (title := section_title(part))}
        found = [adr for text in texts for adr in parse(text).adrs]  # one is more than the parts that were asked for:
        return any(adr.titled or any(key(section.title) not in named for section in adr.sections) for adr in found)
    body = strip_marker(reply).strip()
    if request.shortens:
        return True
    if is_talk(body, answer):
        return False
    before = len(strip_marker(answer).strip())
    return before < _SOME_LENGTH or len(body) >= _FRAGMENT_SHARE * before


def _splice(splice: _Splice, errors: Sequence[ValidationIssue], offer: Offer, parts: Sequence[str]) -> None:
    """Put in the offered parts; a part that would take other content with it is not put in."""
    named = _named_files(splice.answer, errors)
    for name, lines in offer.keys.items():
        splice.take(field_part(name), lines, _safe(splice.answer, put_key(splice.answer, name, lines, named)))
    if offer.header:
        splice.take(YAML_HEADER, offer.header, _safe(splice.answer, put_header(splice.answer, offer.header)))
    for name, title in {key(title): title for part in parts if (title := section_title(part))}.items():
        if body := offer.sections.get(name):
            splice.take(section_part(title), body, _with_section(splice.answer, title, body))
    if offer.step:
        splice.take(STEP_MARKER, marker(offer.step), put_marker(splice.answer, offer.step))


def _with_section(answer: str, title: str, body: str) -> str:
    """The answer with a section; where another one has that very text, that one is renamed."""
    adr = only_adr(answer)
    sections = [] if adr is None or any(key(one.title) == key(title) for one in adr.sections) else adr.sections
    same = [one for one in sections if adr and body_of(adr, one).split() == body.split()]
    if adr is None or not same:
        return _safe(answer, put_section(answer, title, body))
    start = adr.char_of(same[0].line)
    renamed = answer[start:].replace(same[0].title, title, 1)
    return answer[:start] + renamed if not required(same[0].title) and len(same) == 1 else answer


def _safe(before: str, after: str) -> str:
    """The text after a change that neither adds an ADR nor hides a section; else the text before it."""
    old, new = parse(before).adrs, parse(after).adrs
    if len(old) != len(new):
        return before
    kept = (_titles(was) <= _titles(adr) for was, adr in zip(old, new, strict=True))
    return after if all(kept) else before


def _titles(adr: Adr) -> set[str]:
    return {key(section.title) for section in adr.sections}


def _named_files(answer: str, errors: Sequence[ValidationIssue]) -> frozenset[int]:
    """The lines of the header's ``files``, from 0, that errors named."""
    adr = only_adr(answer)
    block = blocks(adr.yaml_text).get(FILES) if adr and adr.header else None
    if adr is None or block is None:
        return frozenset()
    return frozenset(error.line - adr.header_line(block.start) for error in errors if not error.file)


def _number(adr: Adr) -> str:
    """The number of an ADR, without leading zeros; empty when it names none."""
    node = adr.root.get("adr_id") if adr.root is not None else None
    return node.value.strip().lstrip("0") if node is not None and node.kind == "scalar" else ""


def _body(adr: Adr, title: str) -> str:
    """The text of an ADR's section, when it has content; else empty."""
    same = (body_of(adr, section) for section in adr.sections if key(section.title) == key(title))
    return next((body for body in same if has_content(body)), "")
