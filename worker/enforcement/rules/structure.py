"""Rule: the answer has the sections of a template."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, ClassVar

from api_client.contract.issue import Severity, ValidationIssue
from worker.enforcement.documents.content import is_filled
from worker.enforcement.documents.document import Document, parse_document
from worker.enforcement.documents.part_names import section_part
from worker.enforcement.documents.titles import plain_title, section_key
from worker.enforcement.rules.adr_formats import OPTIONAL, PRESETS, AdrPart, choose_part_title, find_adr_parts
from worker.enforcement.rules.codes import rule_issue
from worker.enforcement.rules.rule import Rule, option


@dataclass(frozen=True, kw_only=True)
class StructureRule(Rule):
    """Requires that an answer has the sections of a template, however the headings are formatted."""

    kind: ClassVar[str] = "structure"
    bounded: ClassVar[bool] = True

    preset: str = option("", "A form of decision records: adr, adr-madr or adr-nygard.")
    sections: tuple[str, ...] = option((), "Headings that must be there; `Context|Kontext` names one section twice.")
    level: int = option(2, "The level of the headings in `sections`; 0 for any.")
    filled: bool = option(True, "A section must have content besides its heading.")
    ordered: bool = option(False, "The sections must be in the template's order.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.preset and self.preset not in PRESETS:
            raise ValueError(f"preset must be one of {', '.join(PRESETS)}, not {self.preset!r}")
        if not (self.preset or self.sections):
            raise ValueError("preset or sections must name at least one section")
        if not 0 <= self.level <= 6:
            raise ValueError(f"level must be 0 to 6, not {self.level}")
        if not all(name.strip() for section in self.sections for name in section.split("|")):
            raise ValueError("sections holds an empty name")

    def validate(self, response: str, context: Mapping[str, Any]) -> list[ValidationIssue]:
        """Return an issue for each section that is missing or empty, and for the first section out of order.

        The codes are MISSING_SECTION, EMPTY_SECTION and SECTION_ORDER.
        """
        locale, document = self.find_locale(context), parse_document(response)
        issues, order, firsts = [], [], []
        for title, level, found, optional in self._find_wanted(document):
            order.append(title)
            shown = f"{'#' * (level or 2)} {title}"
            if not found:
                part = section_part(title) if level in (0, 2) else ""
                missing = rule_issue("MISSING_SECTION", locale, part=part, section=shown)
                issues.append(replace(missing, severity=Severity.WARNING) if optional else missing)
                continue
            firsts += [each for each in found if each.title][:1]
            if self.filled and not any(each.filled for each in found):
                part = section_part(plain_title(found[0].title) if found[0].title and level == 0 else title)
                issues.append(rule_issue("EMPTY_SECTION", locale, line=found[0].line + 1, part=part, section=shown))
        if self.ordered:
            issues += self._check_order(firsts, order, locale)
        return issues

    def _find_wanted(self, document: Document) -> Iterator[tuple[str, int, Sequence[AdrPart], bool]]:
        """Yield each expected section's title, heading level and occurrences, and True if the section is optional."""
        if self.preset:
            parts = find_adr_parts(document, self.preset)
            for name in PRESETS[self.preset]:
                yield (
                    choose_part_title(self.preset, name, document),
                    0,
                    parts.get(name, []),
                    name in OPTIONAL[self.preset],
                )
        out = document.out
        for section in self.sections:
            names = {section_key(name) for name in section.split("|")}
            found = [
                AdrPart(heading.line, is_filled(out, heading.line + 1, end, state="status" in names), heading.title)
                for heading, end in zip(out.headings, out.section_ends(), strict=True)
                if heading.top
                and (not self.level or heading.level == self.level)
                and section_key(heading.title) in names
            ]
            yield section.partition("|")[0], self.level, found, False

    def _check_order(self, firsts: list[AdrPart], order: list[str], locale: str) -> list[ValidationIssue]:
        for before, here in pairwise(firsts):
            if here.line < before.line:
                values = {"section": plain_title(before.title), "order": " → ".join(order)}
                return [rule_issue("SECTION_ORDER", locale, line=before.line + 1, **values)]
        return []
