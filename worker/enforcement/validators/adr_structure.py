"""Validator of an ADR's header, required sections and acceptance criteria (ADR-038, section 3)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from api_client.contract.issue import ValidationIssue
from worker.enforcement.documents.adr import MAX_ADRS, Adr
from worker.enforcement.documents.content import is_filled, visible_lines
from worker.enforcement.documents.document import SourceText, iterate_texts
from worker.enforcement.documents.frontmatter import HeaderTooComplex, Node
from worker.enforcement.documents.outline import lines_in_spans
from worker.enforcement.documents.part_names import CRITERIA, YAML_HEADER, field_part, section_part
from worker.enforcement.documents.placeholders import is_placeholder
from worker.enforcement.documents.titles import (
    REQUIRED_SECTIONS,
    SECTION_TITLES,
    choose_section_title,
    plain_title,
    section_key,
)
from worker.enforcement.validators.codes import DEFAULT_LOCALE, make_issue
from worker.enforcement.validators.validator import ResponseValidator

REQUIRED_FIELDS = ("adr_id", "title", "status")
MIN_CRITERIA = 3

_CRITERION = re.compile(r"\s{0,40}(?:[-*+]\s{1,20}\[[ xX]\]|\d{1,9}[.)]\s{1,20}\S)")
_LEADING_ZERO = re.compile(r"0\d+")


class ADRStructureValidator(ResponseValidator):
    """Checks the header and the sections of every architecture decision record (ADR) in an answer.

    An answer without an ADR passes. The files of the answer are checked, too.
    """

    name = "adr_structure"
    bounded: ClassVar[bool] = True
    REQUIRED_SECTIONS = REQUIRED_SECTIONS
    REQUIRED_YAML_FIELDS = REQUIRED_FIELDS

    def __init__(self, locale: str = DEFAULT_LOCALE, sections: Mapping[str, Sequence[str]] = SECTION_TITLES) -> None:
        self.locale = locale
        self.titles = {name: {section_key(title) for title in (name, *also)} for name, also in sections.items()}

    def validate(self, response: str, context: Mapping[str, Any]) -> list[ValidationIssue]:
        """Return an issue for each missing or invalid header field, section or criterion of every ADR."""
        locale = str(context.get("locale", self.locale))
        issues: list[ValidationIssue] = []
        for text in iterate_texts(response, context):
            adrs = text.document.adrs
            if not adrs and text.is_adr:
                issues.append(make_issue("MISSING_YAML_HEADER", locale, file=text.file, line=1))
            if len(adrs) > MAX_ADRS:
                issues.append(make_issue("TOO_MANY_ADRS", locale, file=text.file, count=MAX_ADRS))
                continue
            issues += [
                make_issue("ADR_EXCERPT", locale, file=text.file, line=one.line_of(one.start))
                for one in text.document.excerpts
            ]
            for adr in adrs:
                judge = _AdrChecker(adr, text, locale, surgical=len(adrs) == 1 and adr.offset >= 0)
                issues += judge.check_header()
                issues += judge.check_sections(self.titles)
        return issues


class _AdrChecker:
    def __init__(self, adr: Adr, text: SourceText, locale: str, *, surgical: bool) -> None:
        self.adr, self.file, self.locale, self.surgical = adr, text.file, locale, surgical
        self.named = adr.name if len(text.document.adrs) > 1 else ""

    def _make_issue(self, code: str, line: int, part: str = "", **values: object) -> ValidationIssue:
        found = make_issue(code, self.locale, file=self.file, line=line, part=part if self.surgical else "", **values)
        return replace(found, adr=self.named)

    def check_header(self) -> Iterator[ValidationIssue]:
        adr = self.adr
        if adr.header is None:
            yield self._make_issue("MISSING_YAML_HEADER", adr.line_of(adr.start), YAML_HEADER)
        elif adr.error is not None:
            code = "YAML_TOO_COMPLEX" if isinstance(adr.error, HeaderTooComplex) else "INVALID_YAML"
            yield self._make_issue(code, adr.header_line(adr.error.line), YAML_HEADER, problem=adr.error)
        elif adr.root is None or adr.root.kind != "mapping":
            problem = "leer" if adr.root is None else {"sequence": "Liste"}.get(adr.root.kind, "Einzelwert")
            english = "empty" if adr.root is None else {"sequence": "a list"}.get(adr.root.kind, "a single value")
            shown = english if self.locale.startswith("en") else problem
            yield self._make_issue("INVALID_HEADER", adr.header_line(0), YAML_HEADER, problem=shown)
        else:
            yield from self._check_fields(adr.root)

    def _check_fields(self, root: Node) -> Iterator[ValidationIssue]:
        line_of = self.adr.header_line
        for field in REQUIRED_FIELDS:
            node = root.find_value(field)
            if node is None:
                yield self._make_issue("MISSING_ADR_FIELD", line_of(0), field_part(field), field=field)
            elif node.kind != "scalar":
                problem = f"{field}: {node.kind}"
                yield self._make_issue("INVALID_HEADER", line_of(node.line), field_part(field), problem=problem)
            elif node.is_null or is_placeholder(node.value, state=field == "status"):
                yield self._make_issue("EMPTY_ADR_FIELD", line_of(node.line), field_part(field), field=field)
            elif field == "adr_id" and node.plain and _LEADING_ZERO.fullmatch(node.value):
                yield self._make_issue("UNQUOTED_ADR_ID", line_of(node.line), value=node.value)
        for twice in root.find_duplicates():
            yield self._make_issue("DUPLICATE_KEY", line_of(twice.line), key=twice.value)

    def check_sections(self, titles: Mapping[str, set[str]]) -> Iterator[ValidationIssue]:
        adr = self.adr
        for name, accepted in titles.items():
            found = [section for section in adr.sections if section_key(section.title) in accepted]
            if not found:
                title = choose_section_title(name, [one.title for one in adr.sections], adr.prose, self.locale)
                yield self._make_issue(
                    "MISSING_ADR_SECTION", adr.line_of(adr.start), section_part(title), section=title
                )
            elif not any(is_filled(adr.out, section.line + 1, section.end) for section in found):
                line, title = adr.line_of(found[0].line), plain_title(found[0].title)
                yield self._make_issue("EMPTY_ADR_SECTION", line, section_part(title), section=title)
            elif name == CRITERIA:
                # Criteria inside these do not count.
                hidden = lines_in_spans(adr.out.fenced, adr.out.indented, adr.out.quotes)
                shown = (each for part in found for each in visible_lines(adr.out, part.line + 1, part.end))
                count = sum(
                    1
                    for number, text in shown
                    if number not in hidden and _CRITERION.match(text) and not is_placeholder(text)
                )
                if count < MIN_CRITERIA:
                    yield self._make_issue("INSUFFICIENT_CRITERIA", adr.line_of(found[0].line), count=count)
