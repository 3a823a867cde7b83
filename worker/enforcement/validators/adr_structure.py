"""An ADR is complete: header, required sections, acceptance criteria (ADR-038 section 3).

There is no fallback: an ADR's content is the agent's to write.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from api_client.contract.issues import ValidationIssue
from api_client.contract.marker import STEPS, UNKNOWN
from worker.enforcement.documents.document import MAX_ADRS, Adr, Section, Text, content, parse, texts_of
from worker.enforcement.documents.frontmatter import HeaderTooComplex, Node
from worker.enforcement.documents.outline import lines_of
from worker.enforcement.documents.part import (
    CRITERIA,
    REQUIRED_SECTIONS,
    SECTION_TITLES,
    STEP_MARKER,
    YAML_HEADER,
    asked_as,
    field_part,
    key,
    plain,
    section_part,
)
from worker.enforcement.documents.splice import infer_step, put_marker, strip_marker, trailing_marker
from worker.enforcement.validators.codes import DEFAULT_LOCALE, ResponseValidator, issue, words

REQUIRED_FIELDS = ("adr_id", "title", "status")
MIN_CRITERIA = 3

_CRITERION = re.compile(r"\s{0,40}(?:[-*+]\s{1,20}\[[ xX]\]|\d{1,9}[.)]\s{1,20}\S)")
_LEADING_ZERO = re.compile(r"0\d+")


class ADRStructureValidator(ResponseValidator):
    """Judges every ADR in the answer and in the files; an answer without one has nothing to be judged."""

    name = "adr_structure"
    bounded: ClassVar[bool] = True
    REQUIRED_SECTIONS = REQUIRED_SECTIONS
    REQUIRED_YAML_FIELDS = REQUIRED_FIELDS

    def __init__(self, locale: str = DEFAULT_LOCALE, sections: Mapping[str, Sequence[str]] = SECTION_TITLES) -> None:
        self.locale = locale
        self.titles = {name: {key(title) for title in (name, *also)} for name, also in sections.items()}

    def validate(self, response: str, context: Mapping[str, Any]) -> list[ValidationIssue]:
        """The issues of every ADR, in the order of the texts."""
        locale = str(context.get("locale", self.locale))
        issues: list[ValidationIssue] = []
        for text in texts_of(response, context):
            adrs = text.adrs
            if not adrs and text.is_adr:
                issues.append(issue("MISSING_YAML_HEADER", locale, file=text.file, line=1))
            if len(adrs) > MAX_ADRS:
                issues.append(issue("TOO_MANY_ADRS", locale, file=text.file, count=MAX_ADRS))
                continue
            issues += [
                issue("ADR_EXCERPT", locale, file=text.file, line=one.line_of(one.start)) for one in text.excerpts
            ]
            for adr in adrs:
                # A part can be asked for alone only where code knows where to put it.
                judge = _Judge(adr, text, locale, surgical=len(adrs) == 1 and adr.offset >= 0)
                issues += judge.header()
                issues += judge.sections(self.titles)
        return issues


class _Judge:
    def __init__(self, adr: Adr, text: Text, locale: str, *, surgical: bool) -> None:
        self.adr, self.file, self.locale, self.surgical = adr, text.file, locale, surgical
        self.named = adr.name if len(text.adrs) > 1 else ""

    def _issue(self, code: str, line: int, part: str = "", **values: object) -> ValidationIssue:
        found = issue(code, self.locale, file=self.file, line=line, part=part if self.surgical else "", **values)
        return replace(found, adr=self.named)

    def header(self) -> Iterator[ValidationIssue]:
        adr = self.adr
        if adr.header is None:
            yield self._issue("MISSING_YAML_HEADER", adr.line_of(adr.start), YAML_HEADER)
        elif adr.error is not None:
            code = "YAML_TOO_COMPLEX" if isinstance(adr.error, HeaderTooComplex) else "INVALID_YAML"
            yield self._issue(code, adr.header_line(adr.error.line), YAML_HEADER, problem=adr.error)
        elif adr.root is None or adr.root.kind != "mapping":
            problem = "leer" if adr.root is None else {"sequence": "Liste"}.get(adr.root.kind, "Einzelwert")
            english = "empty" if adr.root is None else {"sequence": "a list"}.get(adr.root.kind, "a single value")
            shown = english if self.locale.startswith("en") else problem
            yield self._issue("INVALID_HEADER", adr.header_line(0), YAML_HEADER, problem=shown)
        else:
            yield from self._fields(adr.root)

    def _fields(self, root: Node) -> Iterator[ValidationIssue]:
        line_of = self.adr.header_line
        for field in REQUIRED_FIELDS:
            node = root.get(field)
            if node is None:
                yield self._issue("MISSING_ADR_FIELD", line_of(0), field_part(field), field=field)
            elif node.kind != "scalar":
                problem = f"{field}: {node.kind}"
                yield self._issue("INVALID_HEADER", line_of(node.line), field_part(field), problem=problem)
            elif node.null or not node.value.strip():
                yield self._issue("EMPTY_ADR_FIELD", line_of(node.line), field_part(field), field=field)
            elif field == "adr_id" and node.plain and _LEADING_ZERO.fullmatch(node.value):
                yield self._issue("UNQUOTED_ADR_ID", line_of(node.line), value=node.value)
        for twice in root.duplicates():
            yield self._issue("DUPLICATE_KEY", line_of(twice.line), key=twice.value)

    def sections(self, titles: Mapping[str, set[str]]) -> Iterator[ValidationIssue]:
        adr = self.adr
        for name, accepted in titles.items():
            found = [section for section in adr.sections if key(section.title) in accepted]
            if not found:
                title = asked_as(name, [one.title for one in adr.sections], adr.prose, self.locale)
                yield self._issue("MISSING_ADR_SECTION", adr.line_of(adr.start), section_part(title), section=title)
            elif not any(any(True for _ in content(adr.out, section.line + 1, section.end)) for section in found):
                line, title = adr.line_of(found[0].line), plain(found[0].title)
                yield self._issue("EMPTY_ADR_SECTION", line, section_part(title), section=title)
            elif name == CRITERIA:
                hidden = lines_of(adr.out.fenced, adr.out.indented, adr.out.quotes)  # no criterion counts there
                count = sum(_criteria(adr, section, hidden) for section in found)
                if count < MIN_CRITERIA:
                    yield self._issue("INSUFFICIENT_CRITERIA", adr.line_of(found[0].line), count=count)


def _criteria(adr: Adr, section: Section, hidden: set[int]) -> int:
    """Return how many criteria a section has, sub-sections included: checkboxes, checked or not, and numbered items."""
    shown = content(adr.out, section.line + 1, section.end)
    return sum(1 for number, line in shown if number not in hidden and _CRITERION.match(line))


# Every answer ends with a step marker (ADR-038 section 2, as repaired by ADR-036; docs/enforcement.md).

#: Key of the context that tells the re-validation which step the fallback put in: only it may write ``unknown``.
FALLBACK_STEP = "fallback_step"


class StepMarkerValidator(ResponseValidator):
    """The last marker outside code and quotes names one of the six steps, in any letter case."""

    name = "step_marker"
    bounded: ClassVar[bool] = True
    VALID_STEPS = frozenset(STEPS)

    def __init__(self, locale: str = DEFAULT_LOCALE) -> None:
        self.locale = locale

    def validate(self, response: str, context: Mapping[str, Any]) -> list[ValidationIssue]:
        """MISSING_STEP_MARKER or INVALID_STEP; warnings for several markers and for text after the last."""
        locale = str(context.get("locale", self.locale))
        found = parse(response).markers
        if not found:
            return [issue("MISSING_STEP_MARKER", locale, part=STEP_MARKER)]
        last, issues = found[-1], []
        line = response.count("\n", 0, last.start) + 1
        if last.step is None and not (last.value.lower() == UNKNOWN and context.get(FALLBACK_STEP) == UNKNOWN):
            issues.append(issue("INVALID_STEP", locale, line=line, part=STEP_MARKER, step=last.value))
        if len(found) > 1:
            issues.append(issue("SEVERAL_STEP_MARKERS", locale, line=line, count=len(found)))
        if response[last.end :].strip():
            issues.append(issue("TEXT_AFTER_MARKER", locale, line=line))
        return issues

    def apply_fallback(self, response: str, context: Mapping[str, Any]) -> str | None:
        """Infer the step and append its marker, or put it in the place of a wrong one; None when a valid one is there.

        With no sign of a step the marker says ``unknown``: an honest gap rather than a ``done`` that nobody wrote.
        """
        last = trailing_marker(response)
        if last is not None and last.step:
            return None
        return put_marker(
            response, infer_step(strip_marker(response))
        )  # the same text when it says ``unknown`` already, and rightly

    def explain_fallback(self, before: str, after: str, context: Mapping[str, Any]) -> Sequence[str]:
        """Which step was put in."""
        last = trailing_marker(after)
        if last is None:
            return ()
        locale = str(context.get("locale", self.locale))
        if last.value == UNKNOWN:
            german, english = (
                "STEP-Marker ergänzt: {} (Schritt nicht erkennbar)",
                "STEP marker added: {} (no step to see)",
            )
            return (words(locale, german, english).format(UNKNOWN),)
        german, english = "STEP-Marker ergänzt: {} (aus der Antwort erschlossen)", "STEP marker added: {} (inferred)"
        return (words(locale, german, english).format(last.value),)
